"""An engine that is started again where it has failed.

An error in the engine's own loop, outside of any request's work, ends its thread. The program would go on without an
engine then, and answer every request with an error until somebody starts it again. A thread that hangs in native code
is another matter: it can not be ended from within the process, so nothing is tried here; its heartbeat shows it.
"""

import atexit
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from engine.engine import ThreadEngine
from engine.errors import EngineClosedError, EngineError
from engine.events import Event, FailedEvent, LoadEvent, ReadyEvent
from engine.front import Front, Fronted
from engine.handle import EventSink
from engine.request import Request

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_RESTARTS = 3
WITHIN_S = 600.0
"""An engine that fails more often than this will fail again, and each time takes requests with it."""
END_S = 30.0
"""How long a failed engine may take to end: it writes prefixes to the disk, and its weights must go before new ones."""


class SupervisedEngine(Fronted):
    """An EngineHandle over one engine after the other. Loading starts at once.

    Where one fails that had been ready, the requests that it had end with errors, the state is `loading` again, and
    listeners hear LoadEvents with the reason first, then a ReadyEvent. A FailedEvent comes only where no new engine is
    made: it could not be loaded, or it failed too often.

    Args:
        make: starts an engine that tells its events to the sink.

    Attributes:
        restarts: how many engines were started after the first.
    """

    def __init__(self, make: Callable[[EventSink], ThreadEngine], *listeners: EventSink) -> None:
        self._make = make
        self._front = Front(listeners)
        self._failures: deque[float] = deque(maxlen=MOST_RESTARTS)  # when, by time.monotonic()
        self._closing = False
        self._lock = threading.Lock()  # closing, and which engine is the present one
        self._made: Future[ThreadEngine] = Future()
        self.restarts = 0
        self._start()
        atexit.register(self.close)

    def submit(self, request: Request, on_event: EventSink) -> None:
        self._present().submit(request, on_event)

    def cancel(self, request_id: str) -> None:
        self._made.result().cancel(request_id)

    def clear_cache(self) -> None:
        self._made.result().clear_cache()

    def perform(self, job: Callable[[], T]) -> "Future[T]":
        """As ThreadEngine has it."""
        return self._present().perform(job)

    def set_aside(self, size: int) -> None:
        """As ThreadEngine has it."""
        self._present().set_aside(size)

    def heartbeat_age(self) -> float:
        return self._made.result().heartbeat_age()

    def close(self, timeout: float = 5.0) -> bool:
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
            engine = self._made.result()
        ended = engine.close(timeout)
        if self._front.state != "failed":
            self._front.stop(None)
        return ended

    def _present(self) -> ThreadEngine:
        self._front.model  # noqa: B018  # raises while there is none
        return self._made.result()

    def _start(self) -> None:
        made: Future[ThreadEngine] = Future()
        self._made = made
        gc.collect()  # an engine and its listeners hold each other, and an old one's weights must go first
        # events may come before `make` has returned, so they find their engine through the future
        made.set_result(self._make(lambda event: self._hear(event, made)))

    def _hear(self, event: Event, made: "Future[ThreadEngine]") -> None:
        if isinstance(event, ReadyEvent):
            engine = made.result()
            if not self._closing:
                self._front.opened(engine.model, engine.chat)
        elif isinstance(event, FailedEvent):
            self._failed(made.result())
        else:
            self._front.send(event)

    def _failed(self, engine: ThreadEngine) -> None:
        """On the failed engine's own thread, which has to end before the next one begins."""
        error = _why(engine)
        now = time.monotonic()
        often = len(self._failures) == MOST_RESTARTS and now - self._failures[0] < WITHIN_S
        if self._front.state != "ready" or often or self._closing:
            self._front.failed(error)
            return
        self._failures.append(now)
        self._front.restart()
        log.error("the engine is started again: %s", str(error))  # the error itself holds the engine
        self._front.send(LoadEvent(now, f"starting again after a failure: {error}"))
        threading.Thread(target=self._restart, name="engine-restart", daemon=True).start()

    def _restart(self) -> None:
        if not self._made.result().close(END_S):
            self._front.failed(EngineError("The engine failed and does not end, so no other is started in its place."))
            return
        with self._lock:
            if self._closing:
                return
            self.restarts += 1
            self._start()


def _why(engine: ThreadEngine) -> EngineError:
    try:
        engine.model  # noqa: B018
    except EngineError as error:
        return error
    return EngineClosedError("The engine has been stopped.")
