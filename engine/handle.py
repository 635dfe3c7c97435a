"""The seam between the engine and everyone who uses it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.chat import ChatFormat
from engine.events import CacheEvent, Event
from engine.request import Request, Sampling

EngineState = Literal["loading", "ready", "failed", "closed"]
EventSink = Callable[[Event], None]
"""Called for each event on one thread of the engine's. It must return at once: append to a deque, or
`loop.call_soon_threadsafe`; never call into a screen or wait for a lock that one holds."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of the loaded model that others show or need.

    Attributes:
        name: how requests and screens call it. path: its folder.
        context: tokens that prompt and answer may have together.
        head: in words, what carries MTP ("mtp, 1 layer, bf16"), or None in autoregressive mode without one.
        sampling: the model's own recommended settings; callers change single fields with dataclasses.replace.
        weight_bytes: size of all weights as loaded.
        kv: in words, how attention keys and values are kept: a type, or "8-bit, 0.53 of the size".
    """

    name: str
    path: str
    family: str
    context: int
    vocab_size: int
    mode: Literal["mtp", "ar"]
    depth: int | None
    head: str | None
    quantization: str | None
    dtype: str
    device: str
    weight_bytes: int
    sampling: Sampling
    kv: str


class EngineHandle(Protocol):
    """What a screen, the server or a command may ask of an engine. All methods may be called from any thread."""

    @property
    def state(self) -> EngineState: ...

    @property
    def model(self) -> ModelInfo:
        """Facts of the loaded model. Raises the load's EngineError where it failed, EngineError while loading."""

    @property
    def chat(self) -> ChatFormat:
        """Renders messages into prompt ids; usable from any thread. Raises as `model` does."""

    @property
    def cache(self) -> CacheEvent | None:
        """What was last told of the cache of prompts; None while nothing was, and where there is none."""

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        """Block until the model is loaded. Raises the load's EngineError, or TimeoutError."""

    def submit(self, request: Request, on_event: EventSink) -> None:
        """Queue a request; its events go to `on_event` and to all listeners.

        Raises BadRequestError or ContextOverflowError for what can not be run, OutOfMemoryError for what could not be
        run here even alone, QueueFullError where as many requests are here as may be, EngineClosedError after the end.
        """

    def cancel(self, request_id: str) -> None:
        """End a request as `cancelled`, once its present step or chunk is over. Unknown ids are ignored."""

    def clear_cache(self) -> None:
        """Forget all prefixes of earlier prompts, in memory and on disk, once the present step or chunk is over.

        A CacheEvent follows where there were any. What is on disk goes for other models and programs as well.
        """

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        """Send every event of every request to `on_event`; the answer ends that when called."""

    def heartbeat_age(self) -> float:
        """Seconds since the engine thread last went round its loop."""

    def close(self, timeout: float = 5.0) -> bool:
        """End all requests as cancelled and stop the thread; False where it did not stop in time."""
