"""What the server knows of each request: those that run, and the last that ended.

It lives in memory only, since prompts are private. The engine's thread writes and never waits for those who read: an
entry is made of plain values, and what a reader finds may be a step old.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent, ReadyEvent, StepEvent, TokenEvent
from engine.request import Request
from server.facts import Phase, RequestFacts
from server.keys import NOBODY, Caller

KEPT = 256
"""Requests that have ended and can still be looked at."""
KEPT_TOKENS = 4_000_000
"""Tokens of prompts and answers of those, at 4 bytes; requests that ended longer ago keep their figures only."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request as far as it is known.

    Attributes:
        begun_at: when it was queued, or first heard of, by `time.monotonic()`.
        asked: what was submitted, without the prompt; None where it did not come through this server.
        caller: whose it is.
        prompt, answer: token ids; None where they are not known, or not kept any more.
        read: the last word on how far its prompt is read, without log-probabilities.
        reads: how many of these there were.
        first_at, last_at, before_at: when tokens of it came, by `time.monotonic()`: at first, at last, and before that.
        told: how many tokens it has and when the last came, as one value: both are of one moment for every thread.
        outlived: whether another model has taken the place of the one that it was for, and so its tokens mean nothing.
    """

    id: str
    begun_at: float
    asked: Request | None = None
    caller: Caller = NOBODY
    prompt: "array[int] | None" = None
    answer: "array[int] | None" = field(default_factory=lambda: array("I"))
    queued: QueuedEvent | None = None
    read: PrefillEvent | None = None
    reads: int = 0
    first_at: float | None = None
    last_at: float | None = None
    before_at: float | None = None
    first_tokens: int = 0
    made: int = 0
    told: tuple[int, float | None] = (0, None)
    context: int = 0
    steps: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    finish: FinishEvent | None = None
    outlived: bool = False

    @property
    def reached(self) -> Phase:
        """How far it came."""
        if self.first_at is not None or (self.read is not None and self.read.done == self.read.total):
            return "decode"
        return "waiting" if self.read is None else "prefill"

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the cache."""
        return 0 if self.read is None else self.read.cached

    def hidden_from(self, caller: Caller) -> bool:
        """Whether what was said in it is none of this caller's business: where there are several, it is their own."""
        return bool(caller.scope) and caller != self.caller

    @property
    def kept_tokens(self) -> int:
        return len(self.prompt or ()) + len(self.answer or ())

    def take(self, event: Event) -> None:
        """What the engine tells of this request."""
        match event:
            case StepEvent():
                self.steps += 1
                self.drafted += event.drafted
                self.judged += event.judged
                self.accepted += min(event.accepted, event.judged)
                self.context = event.context
            case TokenEvent() if event.ids:
                if self.answer is not None:
                    self.answer.extend(event.ids)
                self.made += len(event.ids)
                if self.first_at is None:
                    self.first_at, self.first_tokens = event.at, self.made
                self.before_at, self.last_at = self.last_at, event.at
                self.told = (self.made, event.at)
            case PrefillEvent():
                self.read = replace(event, logprobs=())
                self.reads += 1
                self.context = event.done
            case QueuedEvent():
                self.queued, self.begun_at = event, event.at
            case FinishEvent():
                self.finish = event

    def facts(self, now: float, place: int | None = None) -> RequestFacts:
        """Its figures at `now`, by `time.monotonic()`."""
        finish, queued = self.finish, self.queued
        asked = 0 if self.prompt is None else len(self.prompt)
        return RequestFacts(
            id=self.id,
            source=queued.source if queued else self.asked.source if self.asked else "unknown",
            key=self.caller.label or None,
            state=self.reached if finish is None else "done",
            place=place,
            created=time.time() - (time.monotonic() - self.begun_at),
            age_s=max((now if finish is None else finish.at) - self.begun_at, 0.0),
            prompt_tokens=queued.prompt_tokens if queued else asked,
            read_tokens=0 if self.read is None else self.read.done,
            cached_tokens=self.cached,
            miss="" if self.read is None else self.read.miss,
            completion_tokens=self.made,
            max_tokens=queued.max_tokens if queued else None,
            context=self.context,
            steps=self.steps,
            drafted=self.drafted,
            judged=self.judged,
            accepted=self.accepted,
            ttft_s=None if self.first_at is None or queued is None else self.first_at - queued.at,
            tok_s=self._rate() if finish is None else finish.stats.decode_tok_s,
            finish_reason=None if finish is None else finish.reason,
            error=None if finish is None else finish.error,
            usage=None if finish is None else finish.usage,
            stats=None if finish is None else finish.stats,
        )

    def _rate(self) -> float | None:
        if self.first_at is None or self.last_at is None or self.last_at <= self.first_at:
            return None
        return (self.made - self.first_tokens) / (self.last_at - self.first_at)


class Journal:
    """All entries, in the order in which they came."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._ended: deque[Entry] = deque()
        self._lock = threading.Lock()  # which entries there are; held for a moment
        self._model: str | None = None

    def submitted(self, requests: Sequence[Request], caller: Caller = NOBODY) -> None:
        """The engine has taken in the rows of one request of this server's; it may have told of them already."""
        prompts: dict[int, array[int]] = {}
        for request in requests:
            entry = self._entry(request.id)
            entry.prompt = prompts.setdefault(id(request.prompt), array("I", request.prompt))
            entry.caller = caller
            entry.asked = replace(request, prompt=())

    def hear(self, event: Event) -> None:
        """Add what the engine tells; called with every event of it, on its thread."""
        if isinstance(event, ReadyEvent):
            self._loaded(event.model)
        request_id = getattr(event, "request_id", None)
        if request_id is None:
            return
        entry = self._entry(request_id)
        if entry.finish is not None and isinstance(event, QueuedEvent):  # an id that was used before
            entry = Entry(request_id, event.at)
            with self._lock:
                self._entries[request_id] = entry
        entry.take(event)
        if isinstance(event, FinishEvent):
            self._end(entry)

    def find(self, request_id: str) -> Entry | None:
        return self._entries.get(request_id)

    def entries(self) -> list[Entry]:
        """Every entry there is, the oldest first."""
        with self._lock:
            return list(self._entries.values())

    def facts(self, running_only: bool = False) -> tuple[RequestFacts, ...]:
        """Every request's figures, the oldest first."""
        now, waiting = time.monotonic(), 0
        told = []
        for entry in self.entries():
            if running_only and entry.finish is not None:
                continue
            waits = entry.finish is None and entry.reached == "waiting"
            waiting += waits
            told.append(entry.facts(now, waiting if waits else None))
        return tuple(told)

    def _loaded(self, model: str) -> None:
        """A model is there; where it is another one, tokens of the one before can not be told by its tokenizer."""
        before, self._model = self._model, model
        if before not in (None, model):
            for entry in self.entries():
                entry.prompt, entry.answer, entry.outlived = None, None, True

    def _entry(self, request_id: str) -> Entry:
        entry = self._entries.get(request_id)
        if entry is None:
            with self._lock:
                entry = self._entries.setdefault(request_id, Entry(request_id, time.monotonic()))
        return entry

    def _end(self, entry: Entry) -> None:
        self._ended.append(entry)
        if len(self._ended) > KEPT:
            oldest = self._ended.popleft()
            with self._lock:
                if self._entries.get(oldest.id) is oldest:
                    del self._entries[oldest.id]
        tokens = 0
        for ended in reversed(self._ended):
            tokens += ended.kept_tokens
            if tokens > KEPT_TOKENS:
                ended.prompt = ended.answer = None
