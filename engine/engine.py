"""The thread that owns MLX: it loads the model, schedules, steps and publishes; everyone else sends it messages."""

import atexit
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.errors import BadRequestError, ContextOverflowError, EngineClosedError, EngineError
from engine.events import Event, FailedEvent, FinishReason, LoadEvent, QueuedEvent, ReadyEvent
from engine.handle import EventSink, ModelInfo
from engine.request import SEED_MODULUS, Request
from engine.row import Row

if TYPE_CHECKING:
    from engine.models.load import LoadedModel
    from engine.runner import Runner

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Submit:
    row: Row


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class ThreadEngine:
    """An EngineHandle whose engine runs on a daemon thread of this process. Loading starts at once."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[_Submit | _Cancel | _Stop] = queue.SimpleQueue()
        self._listeners: tuple[EventSink, ...] = ()
        self._lock = threading.Lock()
        self._state: Literal["loading", "ready", "failed", "closed"] = "loading"
        self._error: EngineError | None = None
        self._info: ModelInfo | None = None
        self._chat: ChatFormat | None = None
        self._loaded = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def state(self) -> Literal["loading", "ready", "failed", "closed"]:
        return self._state

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

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        if not self._loaded.wait(timeout):
            raise TimeoutError(f"The model was not loaded within {timeout} s.")
        return self.model

    def submit(self, request: Request, on_event: EventSink) -> None:
        info, chat = self.model, self.chat
        request.check(info.vocab_size)
        if len(request.prompt) >= info.context:
            raise ContextOverflowError(len(request.prompt), info.context)
        if info.mode == "ar" and request.depth:
            raise BadRequestError(
                f"depth is {request.depth}, but the model was loaded without drafts (mode ar).", "depth"
            )
        seed = secrets.randbelow(SEED_MODULUS) if request.seed is None else request.seed % SEED_MODULUS

        def emit(event: Event) -> None:
            self._send(event, on_event)

        row = Row(request, seed, info.mode, chat, info.context, emit)
        with self._lock:  # so that nothing comes into the inbox after its last emptying
            if self._state != "ready":
                raise EngineClosedError("The engine has been stopped; start it again to send requests.")
            self._inbox.put(_Submit(row))

    def cancel(self, request_id: str) -> None:
        self._inbox.put(_Cancel(request_id))

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        with self._lock:
            self._listeners = (*self._listeners, on_event)

        def unlisten() -> None:
            with self._lock:
                self._listeners = tuple(sink for sink in self._listeners if sink is not on_event)

        return unlisten

    def heartbeat_age(self) -> float:
        return time.monotonic() - self._beat

    def close(self, timeout: float = 5.0) -> bool:
        atexit.unregister(self.close)
        self._inbox.put(_Stop())
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _raise_unless_loaded(self) -> None:
        if self._error is not None:
            raise self._error
        if self._state == "loading":
            raise EngineError("The model is still loading; try again in a moment.")

    def _send(self, event: Event, *sinks: EventSink) -> None:
        for sink in (*sinks, *self._listeners):
            try:
                sink(event)
            except Exception:  # whoever listens may fail; the other rows must go on
                log.exception("an event sink failed on %s", type(event).__name__)

    def _run(self) -> None:
        try:
            self._load_and_serve()
        finally:
            _forget_streams()

    def _load_and_serve(self) -> None:
        try:
            loaded = self._load()
        except Exception as error:
            self._fail(_as_engine_error(error))
            self._loaded.set()
            return
        from engine.runner import Runner

        runner = Runner(loaded, self._config)
        self._info, self._chat = loaded.info, loaded.chat
        self._state = "ready"
        self._loaded.set()
        self._send(ReadyEvent(time.monotonic(), loaded.info.name))
        try:
            while self._take_messages(runner):
                self._beat = time.monotonic()
                runner.turn()
            self._end(runner, "cancelled", None)
        except Exception as error:
            problem = _as_engine_error(error)
            self._end(runner, "error", problem)
            self._fail(problem)

    def _end(self, runner: "Runner", reason: FinishReason, error: EngineError | None) -> None:
        """Take no more requests, and end those that are here or on their way."""
        with self._lock:
            self._state, self._error = ("closed", None) if error is None else ("failed", error)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, _Submit):
                runner.add(message.row)
        runner.end_all(reason, None if error is None else str(error))

    def _load(self) -> "LoadedModel":
        from engine import device

        device.prepare()
        from engine.models.load import load

        return load(self._config, lambda stage: self._send(LoadEvent(time.monotonic(), stage)))

    def _fail(self, error: EngineError) -> None:
        self._error, self._state = error, "failed"
        self._send(FailedEvent(time.monotonic(), str(error)))

    def _take_messages(self, runner: "Runner") -> bool:
        """Act on everything in the inbox, waiting for a message where there is nothing to run; False to stop."""
        while True:
            try:
                message = self._inbox.get(timeout=IDLE_WAIT_S) if runner.idle else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if isinstance(message, _Stop):
                return False
            if isinstance(message, _Cancel):
                runner.cancel(message.request_id)
            else:
                row = message.row
                row.emit(_queued(row))
                runner.add(row)


def _as_engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    log.error("the engine failed", exc_info=error)
    return EngineError(f"The engine failed: {type(error).__name__}: {error}. Restart it; the log has more.")


def _forget_streams() -> None:
    """MLX aborts the process at its exit where a thread that has ended still owns streams."""
    import mlx.core as mx

    mx.clear_streams()


def _queued(row: Row) -> QueuedEvent:
    return QueuedEvent(
        row.request.id, time.monotonic(), row.request.source, len(row.request.prompt), row.max_tokens, row.seed
    )
