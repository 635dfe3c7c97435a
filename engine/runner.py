"""The engine's turn: read a chunk of a prompt, run one step of the batch, hand out what it gave."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.caches.bank import Bank
from engine.config import EngineConfig
from engine.depth import CostAwareDepth, DepthPolicy, FixedDepth
from engine.errors import NumericalError
from engine.events import FinishReason, PrefillEvent, TokenLogprob
from engine.models.load import LoadedModel
from engine.prefill import Prefill
from engine.request import MAX_DEPTH
from engine.row import Row, RowStep
from engine.rows import Rows
from engine.scheduler import Scheduler
from engine.step import Outcome, speculate

log = logging.getLogger(__name__)
_BROKEN = (
    "The model gave a logit that is not a finite number. Its weights may be damaged, or the prompt drives it out of "
    "range; inspect the model, or try another prompt."
)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched and not read yet: the rows it was for, in batch order, and each one's limit then."""

    rows: list[Row]
    limits: list[int]
    depth: int
    outcome: Outcome
    launched_at: float


class Runner:
    """The loaded model with its batch. Lives on the engine thread; nothing of it may be touched elsewhere."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._spec = loaded.spec
        self._chat = loaded.chat
        self._scheduler = Scheduler(config.max_rows)
        self._bank = Bank(config.cache_bytes) if config.cache_bytes else None
        self._prefill: Prefill | None = None
        self._rows: Rows | None = None
        self._flight: Flight | None = None
        self._landed_at: float | None = None  # when the step ahead was read; None where something came between
        self._policy: DepthPolicy = FixedDepth(0)
        if loaded.spec.head is not None:
            self._policy = CostAwareDepth(MAX_DEPTH) if config.depth is None else FixedDepth(config.depth)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def add(self, row: Row) -> None:
        self._scheduler.add(row)

    def cancel(self, request_id: str) -> None:
        row = self._scheduler.find(request_id)
        if row is not None:
            row.end("cancelled")
            self._drop_ended()

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for row in self._scheduler.rows:
            row.end(reason, error)
        self._drop_ended()

    def turn(self) -> None:
        """One chunk of prefill and one step, where there is work for them.

        A step is launched before the one in front of it is read, so that building its graph hides behind the device.
        A row that turns out to have ended then takes part in one step more, whose tokens for it are dropped.
        """
        plan = self._scheduler.plan()
        reading = plan.prefill
        if reading is not None:
            self._guarded([reading], lambda: self._read(reading, plan.chunk))
        rows = self._rows.rows if self._rows is not None else []
        self._guarded(rows, self._step)
        self._drop_ended()

    def _guarded(self, rows: list[Row], work: Callable[[], None]) -> None:
        """A failure ends the rows it touched, with its words, and leaves the engine running."""
        try:
            work()
        except Exception as error:
            log.exception("a turn failed")
            self._flight = None
            for row in rows:
                row.end("error", f"{type(error).__name__}: {error}")

    def _read(self, row: Row, chunk: int) -> None:
        if self._prefill is None or self._prefill.row is not row:
            self._prefill = Prefill(self._spec, row, self._bank, self._chat.eos_ids)
            row.prefill_started(self._prefill.cached)
        prefill = self._prefill
        if not prefill.finished:
            prefill.advance(chunk)
        self._landed_at = None
        row.emit(
            PrefillEvent(row.request.id, time.monotonic(), prefill.done, prefill.total, prefill.cached, prefill.miss)
        )
        if prefill.finished:
            row.prefill_done()
            joining = prefill.rows()
            self._rows = joining if self._rows is None else Rows.merge([self._rows, joining])
            self._prefill = None
            self._scheduler.start(row)

    def _step(self) -> None:
        ahead, self._flight = self._flight, None
        try:
            if self._rows is not None:
                self._flight = self._launch(self._rows, ahead)
        finally:
            if ahead is not None:
                self._land(ahead)

    def _launch(self, rows: Rows, ahead: Flight | None) -> Flight:
        """Build a step behind `ahead` and start it; nothing is read."""
        if ahead is None:
            self._landed_at = None
        for row in rows.rows:
            row.limit = self._policy.choose() if row.request.depth is None else row.request.depth
        depth = max(row.limit for row in rows.rows)
        launched_at = time.perf_counter()
        outcome = speculate(self._spec, rows, depth)
        mx.async_eval(outcome, rows.arrays())  # type: ignore[no-untyped-call]  # untyped in its stubs
        return Flight(list(rows.rows), [row.limit for row in rows.rows], depth, outcome, launched_at)

    def _land(self, flight: Flight) -> None:
        """Read a step and hand out what it gave."""
        ints: Any = flight.outcome.ints.tolist()
        now = time.perf_counter()
        seconds, typical = now - (self._landed_at or flight.launched_at), self._landed_at is not None
        self._landed_at = now
        depth = flight.depth
        judged, accepted_at = [0] * depth, [0] * depth
        for place, (row, limit, numbers) in enumerate(zip(flight.rows, flight.limits, ints, strict=True)):
            if row.finished is not None:
                continue
            accepted, broken = numbers[2 * depth + 1 :]
            if broken:
                row.end("error", str(NumericalError(_BROKEN)))
                continue
            for at in range(min(accepted + 1, limit)):
                judged[at] += 1
                accepted_at[at] += at < accepted
            tokens, drafts = numbers[: accepted + 1], numbers[depth + 1 : depth + 1 + limit]
            result = RowStep(tokens, drafts, self._logprobs(row, place, tokens, flight.outcome))
            row.step(result, seconds, len(flight.rows), len(row.request.prompt) + len(row.made) + accepted + 1)
        if self._rows is not None:
            self._rows.tighten(in_flight=self._flight.depth + 1 if self._flight is not None else 0)
        if typical and all(row.request.depth is None for row in flight.rows):
            self._policy.observe(depth, judged, accepted_at, seconds)

    def _logprobs(self, row: Row, place: int, tokens: list[int], outcome: Outcome) -> list[TokenLogprob]:
        if row.request.logprobs is None or outcome.logprobs is None:
            return []
        values: Any = outcome.logprobs[place].tolist()
        ids: Any = [[]] * len(values) if outcome.likeliest is None else outcome.likeliest[place].tolist()
        text = self._chat.token_bytes
        result = []
        for token, (own, *top), likeliest in zip(tokens, values, ids, strict=False):
            ranked = sorted(zip(likeliest, top, strict=True), key=lambda pair: -pair[1])[: row.request.logprobs]
            result.append(TokenLogprob(token, text(token), own, tuple((i, text(i), v) for i, v in ranked)))
        return result

    def _drop_ended(self) -> None:
        keep = self._scheduler.drop_ended()
        if self._prefill is not None and self._prefill.row.finished is not None:
            self._prefill = None
        if self._rows is None or len(keep) == len(self._rows):
            return
        self._rows = self._rows.select(keep) if keep else None
        if self._rows is None:
            self._flight = None
