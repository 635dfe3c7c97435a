"""What an engine shows to everyone outside, wherever it runs: its state, its model, who listens, what it refuses."""

import logging
import threading
import time
from collections.abc import Callable

from engine.chat import ChatFormat
from engine.errors import BadRequestError, ContextOverflowError, EngineClosedError, EngineError
from engine.events import CacheEvent, Event, FailedEvent, ReadyEvent
from engine.handle import EngineState, EventSink, ModelInfo
from engine.request import Request

log = logging.getLogger(__name__)


class Front:
    """The outside of an engine. Any thread may read it; the engine's own thread alone moves it on.

    Attributes:
        state: as EngineHandle says.
        error: why the engine failed; None where it did not.
        cache: what was last told of the cache; None before, and where there is none.
    """

    def __init__(self, listeners: tuple[EventSink, ...]) -> None:
        self.state: EngineState = "loading"
        self.error: EngineError | None = None
        self.cache: CacheEvent | None = None
        self._info: ModelInfo | None = None
        self._chat: ChatFormat | None = None
        self._loaded = threading.Event()
        self._lock = threading.Lock()
        self._listeners = listeners

    @property
    def model(self) -> ModelInfo:
        self._raise_unless_loaded()
        assert self._info is not None
        return self._info

    @property
    def chat(self) -> ChatFormat:
        self._raise_unless_loaded()
        assert self._chat is not None
        return self._chat

    def wait_ready(self, timeout: float | None) -> ModelInfo:
        if not self._loaded.wait(timeout):
            raise TimeoutError(f"The model was not loaded within {timeout} s.")
        return self.model

    def check(self, request: Request) -> None:
        """Raise BadRequestError or ContextOverflowError for what this model can not run as it stands."""
        info = self.model
        request.check(info.vocab_size)
        if len(request.prompt) >= info.context:
            raise ContextOverflowError(len(request.prompt), info.context)
        if info.mode == "ar" and request.depth:
            raise BadRequestError(
                f"depth is {request.depth}, but the model was loaded without drafts (mode ar).", "depth"
            )

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        with self._lock:
            self._listeners = (*self._listeners, on_event)

        def unlisten() -> None:
            with self._lock:
                self._listeners = tuple(sink for sink in self._listeners if sink is not on_event)

        return unlisten

    def send(self, event: Event, *sinks: EventSink) -> None:
        """Hand an event to `sinks` and to all listeners; one that raises is logged and hurts nobody."""
        if isinstance(event, CacheEvent):
            self.cache = event
        for sink in (*sinks, *self._listeners):
            try:
                sink(event)
            except Exception:
                log.exception("an event sink failed on %s", type(event).__name__)

    def opened(self, info: ModelInfo, chat: ChatFormat) -> None:
        """The model is loaded."""
        self._info, self._chat = info, chat
        self.state = "ready"
        self._loaded.set()
        self.send(ReadyEvent(time.monotonic(), info.name))

    def restart(self) -> None:
        """The engine has failed, and another one will be loaded in its place."""
        self.state = "loading"
        self.cache = self._info = self._chat = None
        self._loaded.clear()

    def stop(self, error: EngineError | None) -> None:
        """Take nothing more: closed, or failed where there is an error. Nobody is told yet."""
        if error is None and self._info is None:
            self.error = EngineClosedError("The engine was closed before its model was loaded.")
        else:
            self.error = error
        self.state = "closed" if error is None else "failed"
        self._loaded.set()

    def failed(self, error: EngineError) -> None:
        """Stop, and tell the listeners why."""
        self.stop(error)
        self.send(FailedEvent(time.monotonic(), str(error)))

    def _raise_unless_loaded(self) -> None:
        if self.error is not None:
            raise self.error
        if self._info is None:
            raise EngineError("The model is still loading; try again in a moment.")


class Fronted:
    """What every engine with a Front shows of it, as EngineHandle has it."""

    _front: Front

    @property
    def state(self) -> EngineState:
        return self._front.state

    @property
    def model(self) -> ModelInfo:
        return self._front.model

    @property
    def chat(self) -> ChatFormat:
        return self._front.chat

    @property
    def cache(self) -> CacheEvent | None:
        return self._front.cache

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        return self._front.wait_ready(timeout)

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._front.listen(on_event)
