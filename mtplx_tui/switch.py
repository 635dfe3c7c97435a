"""One engine in the place of another: what the chat and the server hold on to while models come and go."""

import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from engine.chat import ChatFormat
from engine.config import Mode
from engine.errors import EngineClosedError, EngineError
from engine.events import CacheEvent, Event, FailedEvent, LoadEvent, ReadyEvent
from engine.front import Front
from engine.handle import EngineHandle, EngineState, EventSink, ModelInfo
from engine.request import Request

log = logging.getLogger(__name__)

END_S = 30.0
"""How long an engine may take to end before another begins: its weights must be gone by then."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which model to run, and whether with drafts."""

    model: str | None
    mode: Mode


class ModelSwitch(Protocol):
    """What a screen may ask of whoever runs the engine."""

    def load(self, choice: Choice) -> None:
        """Begin to run another model in place of the present one, whose answers end as cancelled.

        Raises EngineError where a model is being loaded already.
        """

    def unload(self) -> None:
        """Begin to give up the present model and its memory. Raises as `load` does."""


class SwitchableEngine:
    """An EngineHandle over one engine after the other; listeners stay. Loading starts at once.

    While another model is loaded the state is `loading`. Where that fails, the model before it is loaded again and a
    LoadEvent says why; a FailedEvent comes only where there is none to go back to.

    Args:
        start: starts an engine for a choice that tells its events to the sink.
    """

    def __init__(self, start: Callable[[Choice, EventSink], EngineHandle], first: Choice) -> None:
        self._start = start
        self._listeners = Front(())
        self._lock = threading.Lock()  # who switches, and whether it is closed
        self._switcher: threading.Thread | None = None
        self._closed = False
        self._between = False  # the old engine is not there any more, or the new one not yet
        self._empty = False
        self._choice = first
        self._engine: Future[EngineHandle] = Future()
        self._make(first)

    @property
    def state(self) -> EngineState:
        return "loading" if self._between else "closed" if self._empty else self._engine.result().state

    @property
    def model(self) -> ModelInfo:
        return self._present().model

    @property
    def chat(self) -> ChatFormat:
        return self._present().chat

    @property
    def cache(self) -> CacheEvent | None:
        return None if self._between or self._empty else self._engine.result().cache

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        return self._engine.result().wait_ready(timeout)

    def submit(self, request: Request, on_event: EventSink) -> None:
        self._present().submit(request, on_event)

    def cancel(self, request_id: str) -> None:
        self._engine.result().cancel(request_id)

    def clear_cache(self) -> None:
        self._engine.result().clear_cache()

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._listeners.listen(on_event)

    def heartbeat_age(self) -> float:
        return self._engine.result().heartbeat_age()

    def load(self, choice: Choice) -> None:
        """As ModelSwitch has it."""
        self._begin(lambda: self._replace(choice))

    def unload(self) -> None:
        """As ModelSwitch has it."""
        self._begin(self._give_up)

    def close(self, timeout: float = 5.0) -> bool:
        with self._lock:
            self._closed = True
            switcher = self._switcher
        ended = self._engine.result().close(timeout)
        if switcher is not None:
            switcher.join(timeout)
            ended = self._engine.result().close(timeout) and not switcher.is_alive()
        return ended

    def _present(self) -> EngineHandle:
        if self._between:
            raise EngineError("The model is still loading; try again in a moment.")
        if self._empty:
            raise EngineClosedError("No model is loaded. Choose one in Models (F4): Enter loads it.")
        return self._engine.result()

    def _begin(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise EngineClosedError("The program is ending.")
            if self._between or self.state == "loading":
                raise EngineError("A model is being loaded. Wait until it is there, then choose another.")
            self._between = True
            self._switcher = threading.Thread(target=work, name="model-switch", daemon=True)
            self._switcher.start()

    def _replace(self, choice: Choice) -> None:
        before = None if self._empty or self._engine.result().state != "ready" else self._choice
        if not self._end():
            return
        error = self._loaded(choice)
        if error is None or self._closed:
            return
        if before is not None:
            log.warning("%s was not loaded: %s", choice.model, error)
            back = f"{error} Going back to {before.model or 'the bundled model'}."
            self._listeners.send(LoadEvent(time.monotonic(), back))
            self._engine.result().close(END_S)
            error = self._loaded(before)
        if error is not None:
            self._failed(error)

    def _give_up(self) -> None:
        if self._end():
            self._empty, self._between = True, False

    def _end(self) -> bool:
        """Close the present engine; its requests end with their own events."""
        what = self._choice.model or "the bundled model"
        self._listeners.send(LoadEvent(time.monotonic(), f"unloading {what}"))
        if self._engine.result().close(END_S):
            return True
        self._failed(EngineError(f"The engine of {what} does not end, so no other is started in its place."))
        return False

    def _loaded(self, choice: Choice) -> EngineError | None:
        """Start an engine and wait for its model; gives why there is none."""
        with self._lock:
            if self._closed:
                return EngineClosedError("The program is ending.")
            self._between = True
            self._make(choice)
        try:
            self._engine.result().wait_ready()
        except EngineError as error:
            return error
        return None

    def _failed(self, error: EngineError) -> None:
        self._between = False
        self._listeners.send(FailedEvent(time.monotonic(), str(error)))

    def _make(self, choice: Choice) -> None:
        made: Future[EngineHandle] = Future()
        self._engine, self._choice, self._empty = made, choice, False
        gc.collect()  # an engine and its listeners hold each other, and the weights must go before others come
        # events may come before `start` has returned, so they find their engine through the future
        made.set_result(self._start(choice, lambda event: self._hear(event, made)))

    def _hear(self, event: Event, made: "Future[EngineHandle]") -> None:
        if made is not self._engine or (self._between and isinstance(event, FailedEvent)):
            return  # whoever switches tells of a failure, once it is known whether there is a way back
        if isinstance(event, ReadyEvent):
            self._between = False
        self._listeners.send(event)
