"""What the engine's events add up to: one reducer, and the frozen figures that screens draw. No Textual here."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from engine.events import (
    Event,
    FailedEvent,
    FinishEvent,
    LoadEvent,
    PrefillEvent,
    QueuedEvent,
    ReadyEvent,
    StepEvent,
    TokenEvent,
)
from mtplx_tui.charts.bars import DepthRate

Phase = Literal["wait", "prefill", "decode", "done"]

STEPS_KEPT = 2000
"""Steps that the waterfall remembers, over all requests."""
WINDOW_STEPS = 256
"""Steps that acceptance figures are taken over."""
RATE_WINDOW_S = 2.0
BIN_S = 0.5
BINS_KEPT = 240
DONE_KEPT = 8
"""Finished requests whose figures stay readable."""


@dataclass(slots=True)
class RequestFacts:
    """One request, from queued to done. Times are `time.monotonic()` seconds.

    `thought` and `thought_s` are the tokens and the time up to the first text of the answer.
    """

    id: str
    source: str
    prompt_tokens: int
    queued_at: float
    phase: Phase = "wait"
    read: int = 0
    cached: int = 0
    miss: str = ""
    out: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    emitted: int = 0
    depth: int = 0
    context: int = 0
    thought: int = 0
    thought_s: float = 0.0
    answering: bool = False
    first_at: float | None = None
    finish: FinishEvent | None = None
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now: float) -> float | None:
        """Tokens a second: over the last two seconds while it runs, the engine's own figure when it is done."""
        if self.finish is not None:
            return self.finish.stats.decode_tok_s
        while self.recent and self.recent[0][0] < now - RATE_WINDOW_S:
            self.recent.popleft()
        if self.first_at is None or len(self.recent) < 2:
            return None
        # The oldest entry opens the window: its tokens were made before it.
        tokens = sum(count for _, count in islice(self.recent, 1, None))
        return tokens / max(self.recent[-1][0] - self.recent[0][0], 1e-6)


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request as the screens list it. `place` counts the waiting ones from 1; `age` in seconds; `ended` is the
    reason for which it did, `miss` why no more of the prompt came from the cache, `prefill_tok_s` how fast the rest was
    read, once it has ended."""

    id: str
    source: str
    phase: Phase
    prompt_tokens: int
    read: int
    cached: int
    out: int
    tok_s: float | None
    age: float
    place: int | None
    ttft: float | None
    prefill_tok_s: float | None
    context: int
    depth: int
    tokens_per_step: float | None
    acceptance: float | None
    ended: str
    miss: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the live panels draw, at one moment.

    Attributes:
        watched: the request whose steps are shown: this chat's own, else the newest that runs.
        steps: its latest steps, newest first.
        depths: its acceptance by depth over `window` steps.
        series: tokens a second of all requests together in bins of half a second, oldest first.
        active: requests that have come and not ended, the oldest first. done: those that ended last, newest first.
        running, waiting: how many requests are in the engine's batch, and in its queue.
    """

    watched: RequestRow | None
    steps: tuple[StepEvent, ...]
    depths: tuple[DepthRate, ...]
    window: int
    series: tuple[float, ...]
    active: tuple[RequestRow, ...]
    done: tuple[RequestRow, ...]

    @property
    def running(self) -> int:
        return sum(row.phase in ("prefill", "decode") for row in self.active)

    @property
    def waiting(self) -> int:
        return sum(row.phase == "wait" for row in self.active)


class EngineState:
    """Takes each event once, in order; everything else reads from it."""

    def __init__(self) -> None:
        self.stage = ""
        self.failure: str | None = None
        self.steps: deque[StepEvent] = deque(maxlen=STEPS_KEPT)
        self._active: OrderedDict[str, RequestFacts] = OrderedDict()
        self._done: OrderedDict[str, RequestFacts] = OrderedDict()
        self._bins: deque[tuple[int, int]] = deque(maxlen=BINS_KEPT)
        self._own: str | None = None

    def own(self, request_id: str | None) -> None:
        """Name the chat's own request; its figures stay in view until the chat's next one. None: there is none yet."""
        self._own = request_id

    @property
    def busy(self) -> bool:
        return bool(self._active)

    @property
    def active(self) -> int:
        """How many requests have come and not ended."""
        return len(self._active)

    def request(self, request_id: str) -> RequestFacts | None:
        return self._active.get(request_id) or self._done.get(request_id)

    def apply(self, event: Event) -> None:
        match event:
            case TokenEvent():
                self._token(event)
            case StepEvent():
                self._step(event)
            case QueuedEvent():
                self._active[event.request_id] = RequestFacts(
                    event.request_id, event.source, event.prompt_tokens, event.at
                )
            case PrefillEvent():
                if facts := self._active.get(event.request_id):
                    facts.phase, facts.read = "prefill", event.done
                    facts.cached, facts.miss = event.cached, event.miss
                    facts.context = event.done
            case FinishEvent():
                if facts := self._active.pop(event.request_id, None):
                    facts.phase, facts.finish = "done", event
                    self._done[event.request_id] = facts
                    if len(self._done) > DONE_KEPT:
                        self._done.popitem(last=False)
            case LoadEvent():
                self.stage = event.stage
            case ReadyEvent():
                self.stage = ""
            case FailedEvent():
                self.failure = event.error

    def _token(self, event: TokenEvent) -> None:
        facts = self._active.get(event.request_id)
        if facts is None:
            return
        count = len(event.ids)
        facts.phase = "decode"
        facts.out += count
        if facts.first_at is None:
            facts.first_at = event.at
        facts.answering = facts.answering or any(span.kind != "reasoning" and span.text.strip() for span in event.spans)
        if not facts.answering:
            facts.thought, facts.thought_s = facts.out, event.at - facts.first_at
        facts.recent.append((event.at, count))
        bin_number = int(event.at / BIN_S)
        if self._bins and self._bins[-1][0] == bin_number:
            self._bins[-1] = (bin_number, self._bins[-1][1] + count)
        else:
            self._bins.append((bin_number, count))

    def _step(self, event: StepEvent) -> None:
        self.steps.append(event)
        facts = self._active.get(event.request_id)
        if facts is None:
            return
        facts.steps += 1
        facts.drafted += event.drafted
        facts.accepted += event.accepted
        facts.judged += min(event.accepted + 1, event.drafted)
        facts.emitted += event.emitted
        facts.depth = max(facts.depth, event.drafted)
        facts.context = event.context

    def snapshot(self, now: float, rows: int, bins: int) -> Snapshot:
        """The figures at `now`, with at most `rows` steps and `bins` points of the rate series."""
        watched = self._watched()
        own_steps: list[StepEvent] = []
        if watched is not None:
            own_steps = list(
                islice((s for s in reversed(self.steps) if s.request_id == watched.id), max(WINDOW_STEPS, rows))
            )
        window = own_steps[:WINDOW_STEPS]
        places = (place for place in range(1, len(self._active) + 1))
        return Snapshot(
            watched=None if watched is None else _row(watched, now, None),
            steps=tuple(own_steps[:rows]),
            depths=depth_rates(window),
            window=len(window),
            series=self._series(now, bins),
            active=tuple(
                _row(facts, now, next(places) if facts.phase == "wait" else None) for facts in self._active.values()
            ),
            done=tuple(_row(facts, now, None) for facts in reversed(self._done.values())),
        )

    def _watched(self) -> RequestFacts | None:
        own = self.request(self._own) if self._own else None
        if own is not None and own.finish is None:
            return own
        others = [facts for facts in self._active.values() if facts.phase != "wait"]
        return others[-1] if others else own

    def _series(self, now: float, bins: int) -> tuple[float, ...]:
        """Whole bins up to now; while nothing runs, up to the last token, so that an idle chart stands still."""
        if not self._bins:
            return ()
        end = int(now / BIN_S) if self._active else self._bins[-1][0] + 1
        start = max(end - bins, self._bins[0][0])
        found = {number: count / BIN_S for number, count in self._bins if number >= start}
        return tuple(found.get(number, 0.0) for number in range(start, end))


def _row(facts: RequestFacts, now: float, place: int | None) -> RequestRow:
    finish = facts.finish
    return RequestRow(
        id=facts.id,
        source=facts.source,
        phase=facts.phase,
        prompt_tokens=facts.prompt_tokens,
        read=facts.read,
        cached=facts.cached,
        out=facts.out,
        tok_s=facts.rate(now),
        age=max((finish.at if finish else now) - facts.queued_at, 0.0),
        place=place,
        ttft=None if facts.first_at is None else facts.first_at - facts.queued_at,
        prefill_tok_s=None if finish is None else finish.stats.prefill_tok_s,
        context=facts.context,
        depth=facts.depth,
        tokens_per_step=facts.emitted / facts.steps if facts.steps else None,
        acceptance=facts.accepted / facts.judged if facts.judged else None,
        ended=finish.reason if finish else "",
        miss=facts.miss,
    )


def depth_rates(steps: Iterable[StepEvent]) -> tuple[DepthRate, ...]:
    """Acceptance at each depth that any of these steps drafted."""
    kinds = Counter((step.drafted, step.accepted) for step in steps)
    rates: list[DepthRate] = []
    for depth in range(1, max((drafted for drafted, _ in kinds), default=0) + 1):
        drafted = sum(n for (d, _), n in kinds.items() if d >= depth)
        accepted = sum(n for (d, a), n in kinds.items() if d >= depth and a >= depth)
        judged = sum(n for (d, a), n in kinds.items() if d >= depth and a >= depth - 1)
        rates.append(DepthRate(depth, accepted / drafted, accepted / judged if judged else None, drafted, judged))
    return tuple(rates)
