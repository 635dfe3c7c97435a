"""An EngineHandle that a test conducts: requests wait until the script says what the engine does with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from engine.chat import ChatFormat
from engine.errors import ContextOverflowError, EngineError
from engine.events import (
    Event,
    FinishEvent,
    FinishReason,
    PrefillEvent,
    QueuedEvent,
    Span,
    SpanKind,
    Stats,
    StepEvent,
    TokenEvent,
    Usage,
)
from engine.handle import EventSink, ModelInfo
from engine.request import Request, Sampling

MODEL = ModelInfo(
    name="demo-13m", path="/models/demo-13m", family="qwen3_5", context=4096, vocab_size=256, mode="mtp", depth=4,
    head="mtp, 1 layer, bf16", quantization=None, dtype="float32", device="cpu", weight_bytes=25_800_000,
    sampling=Sampling(temperature=0.6, top_p=0.95), kv="float32",
)  # fmt: skip


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


class ByteChat:
    """A chat format whose tokens are the bytes of the messages, so that a test can read a prompt back."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, thinking: bool = True, tools: object = None
    ) -> tuple[int, ...]:
        text = "".join(f"<{m['role']}>{m.get('reasoning_content', '')}|{m['content']}{_calls(m)}" for m in messages)
        return tuple(text.encode("utf-8", "surrogatepass"))

    tool_style = "json"
    special_ids = frozenset[int]()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def encode_as_text(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))


def _calls(message: Mapping[str, Any]) -> str:
    made = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()]
    return "".join(made)


class ScriptedHandle:
    """Conducted by `Play`; what the screen asked for is kept in `requests` and `cancelled`.

    `model_is_late` is the moment in which an engine says that it is ready and has not yet handed out its model.
    A cancelled request ends at once, unless `ends_on_cancel` is off and the script ends it.
    """

    def __init__(self, clock: Clock, state: Literal["loading", "ready", "failed"] = "ready") -> None:
        self.clock = clock
        self.state: Literal["loading", "ready", "failed", "closed"] = state
        self.error = EngineError("There is no model called 'nope'. Bundled: demo-13m.")
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.ends_on_cancel = True
        self.model_is_late = False
        self._sinks: dict[str, EventSink] = {}
        self._listeners: list[EventSink] = []

    @property
    def model(self) -> ModelInfo:
        self._raise_unless_ready()
        return MODEL

    @property
    def chat(self) -> ChatFormat:
        self._raise_unless_ready()
        return cast(ChatFormat, ByteChat())

    def _raise_unless_ready(self) -> None:
        if self.state != "ready" or self.model_is_late:
            raise self.error if self.state == "failed" else EngineError("The model is still loading.")

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        return self.model

    def submit(self, request: Request, on_event: EventSink) -> None:
        request.check(MODEL.vocab_size)
        if len(request.prompt) >= MODEL.context:
            raise ContextOverflowError(len(request.prompt), MODEL.context)
        self._sinks[request.id] = on_event
        self.emit(QueuedEvent(request.id, self.clock(), request.source, len(request.prompt), 2048, 1))
        self.requests.append(request)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if self.ends_on_cancel:
            self.emit(FinishEvent(request_id, self.clock(), "cancelled", Usage(), Stats()))

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        self._listeners.append(on_event)
        return lambda: self._listeners.remove(on_event)

    def heartbeat_age(self) -> float:
        return 0.0

    def close(self, timeout: float = 5.0) -> bool:
        self.state = "closed"
        return True

    def emit(self, event: Event) -> None:
        sink = self._sinks.get(getattr(event, "request_id", ""))
        for target in ([sink] if sink else []) + self._listeners:
            target(event)


class Play:
    """What the engine does with one request, step by step, on the test's clock."""

    def __init__(self, handle: ScriptedHandle, request_id: str, prompt_tokens: int) -> None:
        self.handle = handle
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.step = 0
        self.out = 0
        self.thought = 0
        self.accepted = 0
        self.judged = 0

    @classmethod
    def of(cls, handle: ScriptedHandle, request: Request) -> "Play":
        return cls(handle, request.id, len(request.prompt))

    @classmethod
    def outside(cls, handle: ScriptedHandle, request_id: str, source: str = "api", prompt_tokens: int = 1200) -> "Play":
        """A request of somebody else."""
        handle.emit(QueuedEvent(request_id, handle.clock(), source, prompt_tokens, 256, 1))
        return cls(handle, request_id, prompt_tokens)

    def prefill(self, done: int | None = None, seconds: float = 0.2) -> "Play":
        at = self.handle.clock.advance(seconds)
        self.handle.emit(PrefillEvent(self.id, at, self.prompt_tokens if done is None else done, self.prompt_tokens))
        return self

    def say(
        self,
        *tokens: str,
        kind: SpanKind = "text",
        drafted: int = 4,
        refused: str | None = None,
        seconds: float = 0.04,
    ) -> "Play":
        """One step that gives these tokens: all but the last were drafted, the last is the target's own."""
        at = self.handle.clock.advance(seconds)
        accepted = len(tokens) - 1
        self.step += 1
        self.out += len(tokens)
        self.thought += len(tokens) if kind == "reasoning" else 0
        self.accepted += accepted
        self.judged += min(accepted + 1, drafted)
        self.handle.emit(
            StepEvent(
                self.id, at, self.step, drafted, accepted, tokens, refused, seconds, 1, self.prompt_tokens + self.out
            )
        )
        spans = (Span(kind, "".join(tokens)),)
        self.handle.emit(TokenEvent(self.id, at, tuple(65 for _ in tokens), spans))
        return self

    def finish(self, reason: FinishReason = "stop", error: str | None = None) -> "Play":
        usage = Usage(self.prompt_tokens, self.out, 0, self.thought, self.accepted, self.judged - self.accepted)
        stats = Stats("mtp", 4, "rejection", self.step, self.out / max(self.step, 1), (), (), 0.24, 900.0, 96.0)
        self.handle.emit(FinishEvent(self.id, self.handle.clock(), reason, usage, stats, error))
        return self
