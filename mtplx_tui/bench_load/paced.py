"""An engine that says one word at a time at a set pace, whatever the machine could do: what is left is what is around
it, a server or a screen."""

import threading
import time
from collections.abc import Callable, Sequence

from engine.events import (
    CacheEvent,
    Event,
    FinishEvent,
    FinishReason,
    PrefillEvent,
    QueuedEvent,
    Span,
    Stats,
    TokenEvent,
    Usage,
)
from engine.handle import EngineHandle, EventSink
from engine.request import Request
from mtplx_tui.bench_load.wrapped import Wrapped

WORD = " word"


class Paced(Wrapped):
    """An EngineHandle with another one's model and template; each request has a thread of its own.

    Args:
        engine: whose model it says it is; it must be ready, and does nothing. rate: tokens a second.
        words: what it says, over and over.
    """

    def __init__(self, engine: EngineHandle, rate: float, words: Sequence[str] = (WORD,)) -> None:
        super().__init__(engine)
        self._rate = rate
        self._words = words
        self._listeners: list[EventSink] = []
        self._running: dict[str, threading.Event] = {}  # set to end a request

    @property
    def cache(self) -> CacheEvent | None:
        return None

    def submit(self, request: Request, on_event: EventSink) -> None:
        over = self._running[request.id] = threading.Event()
        threading.Thread(target=self._speak, args=(request, on_event, over), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        if request_id in self._running:
            self._running[request_id].set()

    def clear_cache(self) -> None:
        """There is none."""

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        self._listeners.append(on_event)
        return lambda: self._listeners.remove(on_event)

    def heartbeat_age(self) -> float:
        return 0.0

    def close(self, timeout: float = 5.0) -> bool:
        for over in list(self._running.values()):
            over.set()
        return True

    def _speak(self, request: Request, on_event: EventSink, over: threading.Event) -> None:
        def emit(event: Event) -> None:
            for sink in (on_event, *self._listeners):
                sink(event)

        begun, wanted, made, prompt = time.monotonic(), request.max_tokens or 1, 0, len(request.prompt)
        emit(QueuedEvent(request.id, begun, request.source, prompt, wanted, 0))
        emit(PrefillEvent(request.id, begun, prompt - 1, prompt - 1, 0, ""))
        while made < wanted and not over.wait(max(begun + made / self._rate - time.monotonic(), 0.0)):
            emit(TokenEvent(request.id, time.monotonic(), (0,), (Span("text", self._words[made % len(self._words)]),)))
            made += 1
        del self._running[request.id]
        reason: FinishReason = "cancelled" if over.is_set() else "length"
        emit(FinishEvent(request.id, time.monotonic(), reason, Usage(prompt, made), Stats()))
