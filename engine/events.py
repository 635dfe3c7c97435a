"""What the engine tells: frozen records, made on the engine thread and read anywhere.

`at` is `time.monotonic()` in seconds. A request's events come in the order
QueuedEvent, PrefillEvent+, (StepEvent, TokenEvent)*, FinishEvent; FinishEvent comes exactly once, always last.
"""

from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["text", "reasoning", "tool"]
FinishReason = Literal["stop", "length", "cancelled", "error"]
DraftSource = Literal["mtp", "copy", "grammar", "none"]
"""Who drafted a step's tokens: the model's head, the context that repeats itself, the grammar that leaves no choice,
nobody."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of what the model said; concatenating a kind's spans gives that channel's whole text.

    `reasoning` lies between the model's think tokens, `tool` between its tool-call tokens (tags left out);
    the rest is `text`. Kinds are decided by token id, never by matching text.

    `opens` is set on the span, often an empty one, that stands right behind a tool-call tag, opening or closing: so an
    empty call is seen, and two calls with nothing between them are told apart.
    """

    kind: SpanKind
    text: str
    opens: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability under the model itself (before the sampler), with the likeliest alternatives.

    `raw` is the token's own bytes, which need not be whole characters; `top` holds (id, raw, logprob).
    """

    id: int
    raw: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    Attributes:
        completion_tokens: tokens delivered, reasoning included; the end-of-turn token is not counted.
        accepted_prediction_tokens: delivered tokens that were drafted and accepted.
        rejected_prediction_tokens: drafts that were verified and refused (those behind a refusal are not judged).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """How one request ran.

    Attributes:
        depth: the largest depth that a step of it used.
        tokens_per_step: tokens made in a step, mean over steps.
        drafted_by_depth: [d] = how often the draft at depth d + 1 was judged; accepted_by_depth likewise.
        queue_s: submit to the beginning of reading, seconds; None where it was never begun.
        ttft_s: submit to the end of the first step, seconds. decode_tok_s: tokens a second after that.
        prefill_tok_s: prompt tokens read a second, before the first step.
    """

    mode: Literal["mtp", "ar"] = "ar"
    depth: int = 0
    accept_rule: str = "rejection"
    steps: int = 0
    tokens_per_step: float = 0.0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    ttft_s: float | None = None
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    queue_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """The request was taken in; it waits for its turn."""

    request_id: str
    at: float
    source: str
    prompt_tokens: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """`done` of `total` prompt tokens are read; `cached` of them came from the cache, and `miss` says why no more.

    Where the request asked for `prompt_logprobs`, `logprobs` has those that this chunk gave. One event's follow on
    those of the event before, from the prompt's second token to its last.
    """

    request_id: str
    at: float
    done: int
    total: int
    cached: int = 0
    miss: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """The tokens that one step delivered. Spans may lag behind ids: text is held back while it could become a stop
    string, and bytes until they make a whole character."""

    request_id: str
    at: float
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One speculative step of one row, for the verify waterfall.

    Attributes:
        step: 1, 2, ... within the request.
        drafted: tokens drafted (the depth of this step for this row).
        accepted: how many of them, from the first on, were accepted.
        tokens: display texts of the accepted drafts and of the token that the target itself gave after them, up to the
            one that ended the request.
        refused: display text of the first refused draft, or None where all were accepted.
        seconds: wall time of the whole step. rows: rows that shared it.
        context: tokens now in the row's caches, the pending one included.
    """

    request_id: str
    at: float
    step: int
    drafted: int
    accepted: int
    tokens: tuple[str, ...]
    refused: str | None
    seconds: float
    rows: int
    context: int
    source: DraftSource = "mtp"

    @property
    def emitted(self) -> int:
        return self.accepted + 1

    @property
    def judged(self) -> int:
        """How many drafts were verified or refused: not those behind a refusal, nor those behind the row's end."""
        return min(self.accepted + 1, self.drafted, len(self.tokens))


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of a request. `error` is set where `reason` is error; `stop` holds the stop string that ended it."""

    request_id: str
    at: float
    reason: FinishReason
    usage: Usage
    stats: Stats
    error: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """Progress of loading the model, in words."""

    at: float
    stage: str


@dataclass(frozen=True, slots=True)
class ReadyEvent:
    """The model is loaded; requests run from now on."""

    at: float
    model: str


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The engine has stopped for good; each running request got its own FinishEvent before."""

    at: float
    error: str


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """What is kept of earlier prompts, told when the model is loaded and each time that it changes.

    Attributes:
        stretches: pieces of prompts in memory; those with one beginning share it. tokens: in all of them.
        nbytes: bytes of memory that they take. limit: most that they may take.
        evicted: stretches that have left memory for want of room since the model was loaded.
        folder: where they are kept on disk as well; None where they are in memory only.
    """

    at: float
    stretches: int
    tokens: int
    nbytes: int
    limit: int
    evicted: int
    folder: str | None


Event = (
    QueuedEvent
    | PrefillEvent
    | TokenEvent
    | StepEvent
    | FinishEvent
    | LoadEvent
    | ReadyEvent
    | CacheEvent
    | FailedEvent
)
