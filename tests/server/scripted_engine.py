"""An EngineHandle that says what a test tells it to, event by event, from a thread of its own per request.

For what a real model can not be made to do on demand: exact spans, errors in mid-stream, stalls, a state for as long
as a test wants it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from engine.chat import ChatFormat
from engine.config import Mode
from engine.errors import ContextOverflowError, EngineClosedError, EngineError
from engine.events import (
    CacheEvent,
    DraftSource,
    Event,
    FailedEvent,
    FinishEvent,
    FinishReason,
    LoadEvent,
    PrefillEvent,
    QueuedEvent,
    ReadyEvent,
    Span,
    SpanKind,
    Stats,
    StepEvent,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from engine.handle import EventSink, ModelInfo
from engine.request import Request, Sampling
from engine.row import Row, RowStep

VOCAB = 6144
CONTEXT = 2048


class Cancelled(Exception):
    pass


class ScriptedRow:
    """One request under way; a script calls its methods in the order in which things shall happen."""

    def __init__(self, request: Request, emit: Callable[[Event], None]) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self.finished = threading.Event()
        self._emit = emit
        self._tokens = 0
        self._reasoning = 0

    def say(self, *texts: str, kind: SpanKind = "text", tokens: int = 1, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """One step that delivers these texts, each a span of `kind`, as `tokens` tokens."""
        self.spans([Span(kind, text) for text in texts], tokens, logprobs)

    def spans(self, spans: Sequence[Span], tokens: int = 1, logprobs: Sequence[TokenLogprob] = ()) -> None:
        self._check()
        self._tokens += tokens
        self._reasoning += tokens * any(span.kind == "reasoning" for span in spans)
        self._emit(TokenEvent(self.request.id, time.monotonic(), (7,) * tokens, tuple(spans), tuple(logprobs)))

    def prefill(self, done: int, cached: int = 2, miss: str = "") -> None:
        self._check()
        self._emit(PrefillEvent(self.request.id, time.monotonic(), done, len(self.request.prompt) - 1, cached, miss))

    def step(self, drafted: int, accepted: int, *, taken: int | None = None, source: DraftSource = "mtp") -> None:
        """What is told of a step beside its tokens; `taken` of them were left where the row ended in it."""
        self._check()
        tokens = ("x",) * (accepted + 1 if taken is None else taken)
        refused = "y" if accepted < drafted else None
        at, context = time.monotonic(), len(self.request.prompt) + self._tokens
        self._emit(StepEvent(self.request.id, at, 1, drafted, accepted, tokens, refused, 0.01, 1, context, source))

    def wait(self, gate: threading.Event | None = None) -> None:
        """Until the gate opens; for ever without one. A cancel ends the wait and the script."""
        while not (gate is not None and gate.wait(0.005)):
            if self.cancelled.wait(0.005):
                raise Cancelled

    def tell(self, event: TokenEvent) -> None:
        """Tokens that a test has made itself."""
        self._check()
        self._tokens += len(event.ids)
        self._emit(event)

    def commit(self, chat: ChatFormat, *blocks: Sequence[int]) -> None:
        """Verify steps that commit these tokens, all but the last of each drafted, told as the engine tells them."""
        row = Row(self.request, 0, "mtp", chat, CONTEXT, self._emit)
        for block in blocks:
            told = [TokenLogprob(token, chat.token_bytes(token), -0.5) for token in block]
            logprobs = () if self.request.logprobs is None else told
            if row.step(RowStep(block, block[:-1], logprobs=logprobs), 0.01, 1, len(self.request.prompt)):
                break
        self.finished.set()

    def finish(self, reason: FinishReason = "stop", *, error: str | None = None, stop: str | None = None) -> None:
        accepted = max(self._tokens - 1, 0)
        usage = Usage(len(self.request.prompt), self._tokens, 2, self._reasoning, accepted, 1)
        self.finished.set()
        self._emit(FinishEvent(self.request.id, time.monotonic(), reason, usage, Stats(), error, stop))

    def _check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled


Script = Callable[[ScriptedRow], None]


def say_hello(row: ScriptedRow) -> None:
    row.say("Hello", tokens=2)
    row.say(" there.", tokens=2)
    row.finish()


def stays_in(phase: str) -> Script:
    """Waits for ever in the queue, while reading the prompt (prefill) or behind a first token (decode)."""

    def script(row: ScriptedRow) -> None:
        if phase == "prefill":
            row.prefill(1)
        if phase == "decode":
            row.say("some")
        row.wait()

    return script


class ScriptedEngine:
    """See the module. `script`, `context` and `mode` may be replaced between requests; `rows` are all that were
    submitted."""

    def __init__(self, chat: ChatFormat, script: Script = say_hello) -> None:
        self._chat = chat
        self._listeners: list[EventSink] = []
        self.reset(script)

    def reset(self, script: Script = say_hello) -> None:
        """Become as new; who listens stays, such as a server that several tests share."""
        self.script = script
        self.context = CONTEXT
        self.mode: Mode = "mtp"
        self.rows: list[ScriptedRow] = []
        self.age = 0.0
        self.error: EngineError | None = None
        self.cache: CacheEvent | None = None
        self._state: Literal["loading", "ready", "failed", "closed"] = "ready"

    @property
    def state(self) -> Literal["loading", "ready", "failed", "closed"]:
        return self._state

    @property
    def model(self) -> ModelInfo:
        if self.error is not None:
            raise self.error
        if self._state == "loading":
            raise EngineError("The model is still loading.")
        return ModelInfo(
            "demo-13m", "/models/demo-13m", "qwen3_5", self.context, VOCAB, self.mode, None, "mtp", None, "bf16", "cpu",
            1, Sampling(temperature=0.6, top_k=20, top_p=0.95), "float32",
        )  # fmt: skip

    @property
    def chat(self) -> ChatFormat:
        self.model  # noqa: B018  # raises as it does
        return self._chat

    def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        return self.model

    def load(self) -> None:
        self._state = "loading"

    def fail(self, error: str) -> None:
        self._state, self.error = "failed", EngineError(error)
        for sink in self._listeners:
            sink(FailedEvent(time.monotonic(), error))

    def restart(self, why: str) -> None:
        """Tell what a supervised engine tells that failed and is back."""
        for event in (LoadEvent(time.monotonic(), why), ReadyEvent(time.monotonic(), "demo-13m")):
            for sink in self._listeners:
                sink(event)

    def submit(self, request: Request, on_event: EventSink) -> None:
        if self._state == "closed":
            raise EngineClosedError("The engine has been closed.")
        request.check(VOCAB)
        if len(request.prompt) >= self.context:
            raise ContextOverflowError(len(request.prompt), self.context)

        def emit(event: Event) -> None:
            for sink in (on_event, *self._listeners):
                sink(event)

        row = ScriptedRow(request, emit)
        self.rows.append(row)
        threading.Thread(target=self._play, args=(row, emit), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        for row in self.rows:
            if row.request.id == request_id:
                row.cancelled.set()

    def clear_cache(self) -> None:
        self.keep(0)

    def keep(self, stretches: int, evicted: int = 0, folder: str | None = None) -> None:
        """Have so many stretches of 100 tokens in the cache."""
        tokens = 100 * stretches
        self.cache = CacheEvent(time.monotonic(), stretches, tokens, 1000 * tokens, 1 << 30, evicted, folder)
        for sink in list(self._listeners):
            sink(self.cache)

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        self._listeners.append(on_event)
        return lambda: self._listeners.remove(on_event)

    def heartbeat_age(self) -> float:
        return self.age

    def close(self, timeout: float = 5.0) -> bool:
        self._state = "closed"
        for row in self.rows:
            row.cancelled.set()
        return all(row.finished.wait(timeout) for row in self.rows)

    def _play(self, row: ScriptedRow, emit: Callable[[Event], None]) -> None:
        request = row.request
        emit(
            QueuedEvent(request.id, time.monotonic(), request.source, len(request.prompt), request.max_tokens or 99, 1)
        )
        try:
            self.script(row)
        except Cancelled:
            row.finish("cancelled")
