"""The host's side of one running request: which tokens are delivered, when it ends, what it counts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.chat import ChatFormat
from engine.config import Mode
from engine.drafters import HostDrafter
from engine.events import (
    DraftSource,
    FinishEvent,
    FinishReason,
    Span,
    Stats,
    StepEvent,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from engine.handle import EventSink
from engine.request import AcceptRule, Request
from engine.text import FirstCall, TextStream

if TYPE_CHECKING:
    from engine.grammar import Constraint


@dataclass(frozen=True, slots=True)
class RowStep:
    """What one step gave a row, on the host.

    Attributes:
        tokens: accepted drafts and the target's token. drafts: what was drafted, up to the row's own limit.
        source: who drafted. logprobs: one for each of `tokens` where asked for, else empty.
    """

    tokens: Sequence[int]
    drafts: Sequence[int]
    source: DraftSource = "mtp"
    logprobs: Sequence[TokenLogprob] = ()

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class _NoTags:
    """A vocabulary in which no token opens or closes anything."""

    token_bytes: Callable[[int], bytes]
    think_ids: None = None
    tool_ids: None = None


class Row:
    """One admitted request. All methods run on the engine thread.

    Attributes:
        made: ids delivered so far (a token that ended the row is in it, though it is not delivered).
        drafter: drafts for this row beside the head; None where it has none.
        grammar: where the answer stands in the grammar that it must keep to; None where it is free.
        finished: set once the row has ended.
        forgotten: set where the cache was cleared meanwhile: nothing of the row may be left there.
    """

    def __init__(
        self,
        request: Request,
        seed: int,
        mode: Mode,
        chat: ChatFormat,
        context: int,
        emit: EventSink,
        rule: AcceptRule = "rejection",
        grammar: "Constraint | None" = None,
    ) -> None:
        self.request = request
        self.seed = seed
        self.mode = mode
        self.rule: AcceptRule = request.accept_rule or (rule if request.seed is None else "coupled")
        self.emit = emit
        self.made: list[int] = []
        self.drafter: HostDrafter | None = None
        self.grammar = grammar
        self.finished: FinishReason | None = None
        self.forgotten = False
        self._chat = chat
        self._context = context
        if request.raw:
            self._text = TextStream(_NoTags(chat.token_bytes), stops=request.stop)
        else:
            self._text = TextStream(chat, stops=request.stop, kind=chat.starts_in(request.prompt))
        style = chat.tool_style if request.single_call and not request.raw else None
        self._first_call = None if style is None else FirstCall(chat, style)
        room = context - len(request.prompt)
        self.max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
        self._submitted = time.monotonic()
        self._prefill_started: float | None = None
        self._prefill_done: float | None = None
        self._first_tokens = self._cached = 0
        self._first_token_at: float | None = None
        self._last_token_at = 0.0
        self._steps = self._depth = 0
        self._delivered = self._reasoning = self._accepted = self._rejected = 0
        self._judged_by_depth: list[int] = []
        self._accepted_by_depth: list[int] = []

    def prefill_started(self, cached: int) -> None:
        """The prompt is being read from now on; its first `cached` tokens are in the caches already."""
        self._prefill_started, self._cached = time.monotonic(), cached

    def prefill_done(self) -> None:
        self._prefill_done = time.monotonic()

    def step(self, result: RowStep, seconds: float, rows: int, context: int) -> bool:
        """Take what a step gave, tell the listeners, and end the row where it must; whether it has ended."""
        self._last_token_at = time.monotonic()
        before = len(self.made)
        ids, spans = self._take(result.tokens, drafted=result.accepted)
        taken = len(self.made) - before
        if self.drafter is not None:
            if result.source == "copy":
                self.drafter.observe(len(result.drafts), result.accepted)
            self.drafter.extend(self.made[before:])
        self._count(result, taken)
        refused = result.drafts[result.accepted] if result.accepted < len(result.drafts) else None
        self.emit(
            StepEvent(
                request_id=self.request.id,
                at=self._last_token_at,
                step=self._steps,
                drafted=len(result.drafts),
                accepted=result.accepted,
                tokens=tuple(self._shown(token) for token in result.tokens[:taken]),
                refused=None if refused is None else self._shown(refused),
                seconds=seconds,
                rows=rows,
                context=context,
                source=result.source if result.drafts else "none",
            )
        )
        self.emit(
            TokenEvent(
                self.request.id, self._last_token_at, tuple(ids), tuple(spans), tuple(result.logprobs[: len(ids)])
            )
        )
        if self.finished is None:
            return False
        self._end(self.finished)
        return True

    def _shown(self, token: int) -> str:
        return self._chat.token_bytes(token).decode("utf-8", "replace")

    def _count(self, result: RowStep, taken: int) -> None:
        """Drafts behind the row's end were judged on nothing, and are left out."""
        drafted = len(result.drafts)
        self._steps += 1
        self._depth = max(self._depth, drafted)
        self._rejected += result.accepted < min(drafted, taken)
        while len(self._judged_by_depth) < drafted:
            self._judged_by_depth.append(0)
            self._accepted_by_depth.append(0)
        for place in range(min(result.accepted + 1, drafted, taken)):
            self._judged_by_depth[place] += 1
            self._accepted_by_depth[place] += place < result.accepted

    def _take(self, tokens: Sequence[int], drafted: int) -> tuple[list[int], list[Span]]:
        """Take tokens in order until one of them ends the row; the rest is dropped and never counted."""
        ids: list[int] = []
        spans: list[Span] = []
        for place, token in enumerate(tokens):
            self.made.append(token)
            if token in self._chat.eos_ids and not self._goes_on:
                self.finished = "stop"
                break
            kind = self._text.kind
            spans += self._text.push(token)
            ids.append(token)
            self._delivered += 1
            self._reasoning += kind == "reasoning" or self._text.kind == "reasoning"
            self._accepted += place < drafted
            called = self._first_call is not None and self._first_call.ends_at(token)
            if self._text.stopped is not None or self._completed_by(token) or called:
                self.finished = "stop"
                break
            if self._delivered >= self.max_tokens:
                self.finished = "length"
                break
        if self._first_token_at is None:
            self._first_token_at, self._first_tokens = self._last_token_at, len(self.made)
        if self.finished is not None:
            spans += self._text.finish()
            if self._text.stopped is not None:  # a stop that only the flush completed
                self.finished = "stop"
        return ids, spans

    @property
    def _goes_on(self) -> bool:
        """Whether the token that ends a turn would end nothing now."""
        return self.request.ignore_eos or self._delivered < self.request.min_tokens

    def _completed_by(self, token: int) -> bool:
        """Let the grammar take the token; whether nothing may follow it."""
        if self.grammar is None:
            return False
        self.grammar.take(token)
        return self.grammar.complete

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """End the row from outside: cancelled, failed, or read where nothing is to be made. What was held back is
        delivered first."""
        if self.finished is not None:
            return
        self.finished = reason
        held = self._text.finish()
        if held:
            self.emit(TokenEvent(self.request.id, time.monotonic(), (), tuple(held)))
        self._end(reason, error)

    def _end(self, reason: FinishReason, error: str | None = None) -> None:
        self.emit(
            FinishEvent(
                self.request.id, time.monotonic(), reason, self._usage(), self._stats(), error, self._text.stopped
            )
        )

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self._delivered,
            cached_tokens=self._cached,
            reasoning_tokens=self._reasoning,
            accepted_prediction_tokens=self._accepted,
            rejected_prediction_tokens=self._rejected,
        )

    def _stats(self) -> Stats:
        first, started, done = self._first_token_at, self._prefill_started, self._prefill_done
        decoding = self._last_token_at - first if first is not None else 0.0
        read = len(self.request.prompt) - 1 - self._cached  # the last prompt token is read by the first step
        return Stats(
            mode=self.mode,
            depth=self._depth,
            accept_rule=self.rule,
            steps=self._steps,
            tokens_per_step=len(self.made) / self._steps if self._steps else 0.0,
            drafted_by_depth=tuple(self._judged_by_depth),
            accepted_by_depth=tuple(self._accepted_by_depth),
            ttft_s=None if first is None else first - self._submitted,
            prefill_tok_s=read / (done - started) if read and done and started else None,
            decode_tok_s=(len(self.made) - self._first_tokens) / decoding if decoding > 0 else None,
            queue_s=None if started is None else started - self._submitted,
        )
