"""An engine that hands everything on to another one, for what measures with some of it changed."""

from collections.abc import Callable

from engine.chat import ChatFormat
from engine.events import CacheEvent
from engine.handle import EngineHandle, EngineState, EventSink, ModelInfo
from engine.request import Request


class Wrapped:
    """An EngineHandle; `engine` is whose it does."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine

    @property
    def state(self) -> EngineState:
        return self._engine.state

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def chat(self) -> ChatFormat:
        return self._engine.chat

    @property
    def cache(self) -> CacheEvent | None:
        return self._engine.cache

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        return self._engine.wait_ready(timeout)

    def submit(self, request: Request, on_event: EventSink) -> None:
        self._engine.submit(request, on_event)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def clear_cache(self) -> None:
        self._engine.clear_cache()

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._engine.listen(on_event)

    def heartbeat_age(self) -> float:
        return self._engine.heartbeat_age()

    def close(self, timeout: float = 5.0) -> bool:
        return self._engine.close(timeout)
