"""What a server says of itself and of its requests: plain data, the same for whoever answers and for whoever asks."""

from dataclasses import dataclass
from typing import Literal

from engine.errors import EngineError
from engine.events import CacheEvent, FinishEvent, FinishReason, Span, Stats, Usage
from engine.handle import EngineHandle, EngineState, ModelInfo

Phase = Literal["waiting", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server's life.

    Attributes:
        address: its URL, without /v1. started: seconds since 1970. keyed: whether it asks for a key.
    """

    version: str
    pid: int
    address: str
    started: float
    keyed: bool


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """One request's figures at one moment.

    Attributes:
        id: as its client sees it; the further answers to one request end in -1, -2 and so on.
        source: who asks. key: the name of the key that it came with.
        place: among those that wait, from 1; None for others.
        created: seconds since 1970. age_s: from then to its end, or to now.
        read_tokens: of the prompt, those in the caches. cached_tokens: of these, the ones that were there already.
        miss: why it was not more, in words.
        completion_tokens: tokens delivered so far. context: tokens that the caches hold for it.
        steps, drafted, judged, accepted: how many, and the drafts in them.
        tok_s: tokens a second after the first step.
        usage, stats: once it has ended.
    """

    id: str
    source: str
    key: str | None
    state: Phase | Literal["done"]
    place: int | None
    created: float
    age_s: float
    prompt_tokens: int
    read_tokens: int
    cached_tokens: int
    miss: str
    completion_tokens: int
    max_tokens: int | None
    context: int
    steps: int
    drafted: int
    judged: int
    accepted: int
    ttft_s: float | None
    tok_s: float | None
    finish_reason: FinishReason | None
    error: str | None
    usage: Usage | None
    stats: Stats | None


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What a request has been answered so far, for readers that have missed some of it.

    Attributes:
        ids: all tokens that were delivered. spans: their text, as the request's TokenEvents have it together.
        at: when the last of them came, by the server's `time.monotonic()`; None where none has.
        finish: once it has ended; then `spans` is all that there will be.
    """

    id: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    at: float | None
    finish: FinishEvent | None


@dataclass(frozen=True, slots=True)
class Hello:
    """How a stream of events begins: all that a reader needs to make sense of what follows.

    Attributes:
        now: the server's `time.monotonic()`, the clock of all events. time: seconds since 1970 at that moment.
        model: None where it is not loaded, or could not be.
        requests: those that run or wait. What the first events say of them may be in here already.
        cache: what the engine last said of it.
    """

    now: float
    time: float
    server: ServerFacts
    state: EngineState
    model: ModelInfo | None
    requests: tuple[RequestFacts, ...]
    cache: CacheEvent | None


@dataclass(frozen=True, slots=True)
class Lost:
    """So many events were left out here, since the reader was too slow. GET /v1/mtplx/requests has where things are."""

    count: int


def loaded(engine: EngineHandle) -> ModelInfo | None:
    """The engine's model; None where it is not loaded, or has failed."""
    try:
        return engine.model
    except EngineError:
        return None
