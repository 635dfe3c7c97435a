"""The engine's turn: read a chunk of a prompt, run one step of the batch, hand out what it gave."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx

from engine import answers, device
from engine.answers import Ended, Landing
from engine.caches.bank import FLUSH_SECONDS, open_bank
from engine.config import EngineConfig
from engine.errors import EngineError, NumericalError, OutOfMemoryError
from engine.events import CacheEvent, FinishReason, PrefillEvent, TokenLogprob
from engine.logprobs import NOT_FINITE, Scores, told
from engine.memory import MemoryPlan, Reservations, no_more_room, not_beside, out_of_memory, ran_out
from engine.models.load import LoadedModel
from engine.models.row_cost import row_cost
from engine.planner import Planner, RowOutcome
from engine.prefill import Prefill
from engine.readers import readers
from engine.row import Row, RowStep
from engine.rows import Rows
from engine.scheduler import ChunkSize, Scheduler
from engine.step import Outcome, StepPlan, speculate
from engine.times import StepTimes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched and not read yet, and the rows it was for, in batch order.

    `behind` is whether another one was in flight then. `landing` is None where nothing is kept of answers.
    """

    rows: list[Row]
    plan: StepPlan
    outcome: Outcome
    behind: bool
    landing: Landing | None
    launched_at: float
    built_at: float
    sent_at: float


class Runner:
    """The loaded model with its batch. Lives on the engine thread; nothing of it may be touched elsewhere.

    `on_step` is told where the time of each step went that followed another one at once, `on_cache` what the bank
    holds, each time that this has changed.

    Attributes:
        plan: what requests may take of the memory; plain data, for any thread.

    Raises:
        OutOfMemoryError: on making one whose weights leave no room in the memory that the engine may take.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        on_step: Callable[[StepTimes], None] | None = None,
        on_cache: Callable[[CacheEvent], None] | None = None,
    ) -> None:
        self._on_step = on_step
        self._on_cache = on_cache
        self._spec = loaded.spec
        self._chat = loaded.chat
        limit = config.memory_bytes or device.prepare().memory
        device.limit_memory(limit)
        self.plan = MemoryPlan(limit, loaded.info.weight_bytes, row_cost(loaded.spec), loaded.info.context)
        self._reserved = Reservations(self.plan)
        chunks = ChunkSize(config.profile.chunk, config.profile.stall_s)
        self._scheduler = Scheduler(config.max_rows, chunks, self._left, self._reserved.take)
        self._frugal = config.profile.frugal
        self._bank = open_bank(config, loaded.info)
        self._readers = readers(loaded.spec)
        self._prefills: dict[Row, Prefill] = {}
        self._lengths: dict[Row, int] = {}  # tokens to read, as far as is known of prompts that wait for their turn
        self._rows: Rows | None = None
        self._flight: Flight | None = None
        self._ended: list[Ended] = []  # rows whose answers have ended and that are still in the batch
        self._landed_at: float | None = None  # when the step ahead was read; None where something came between
        self._planner = Planner(config, has_head=loaded.spec.head is not None)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def add(self, row: Row) -> None:
        """Take a row in. One that could not be run even alone is ended at once, with the reason."""
        try:
            self.plan.check(len(row.request.prompt), row.request.max_tokens)
        except OutOfMemoryError as error:
            row.end("error", str(error))
        else:
            self._scheduler.add(row)

    def cancel(self, request_id: str) -> None:
        """End a row; it leaves the batch before the next chunk or step."""
        row = self._scheduler.find(request_id)
        if row is not None:
            row.end("cancelled")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        for row in self._scheduler.rows:
            row.end(reason, error)
        self._drop_ended()

    def close(self, flush_s: float = FLUSH_SECONDS) -> None:
        """End the second reader, and let the bank write what is not on disk yet, for so many seconds at most."""
        if self._readers is not None:
            self._readers.close()
        if self._bank is not None:
            self._bank.close(flush_s)

    def turn(self) -> None:
        """One chunk of prefill and one step, where there is work for them.

        A step is launched before the one in front of it is read, so that building its graph hides behind the device.
        A row that turns out to have ended then takes part in one step more, whose tokens for it are dropped. Where a
        prompt is read, the step in front is read before it: its tokens do not wait for the chunk, a chunk that fails
        costs the other rows nothing, and what is measured is the chunk alone.
        """
        self._drop_ended()
        plan = self._scheduler.plan()
        reading = plan.prefill
        if reading is not None:
            self._guarded(self._batch, self._land_ahead)
            self._drop_ended()
            self._guarded([reading], lambda: self._read(reading, plan.chunk))
        self._extend()
        self._guarded(self._batch, self._step)
        self._drop_ended()
        self.tell_cache()

    def pause(self) -> None:
        """Read the step in front, for other work to come between it and the next one, whose time then says nothing."""
        self._guarded(self._batch, self._land_ahead)
        self._drop_ended()
        self._landed_at = None

    def set_aside(self, size: int) -> None:
        """Take so many bytes out of the plan, for a model beside this one; a negative size puts them back.

        Raises OutOfMemoryError where they are not free, or a row that waits here would have no place any more.
        """
        room = self._reserved.room
        try:
            plan = replace(self.plan, weights=self.plan.weights + size)
            for row in self._scheduler.rows:
                plan.check(len(row.request.prompt), row.request.max_tokens)
        except OutOfMemoryError:
            raise not_beside(size, room) from None
        if size > room:
            raise not_beside(size, room)
        self.plan = self._reserved.plan = plan
        self._shrink_bank()

    def clear_cache(self) -> None:
        """Forget all prefixes of earlier prompts; rows that run go on with what they have, and leave nothing."""
        if self._bank is not None:
            self._bank.erase()
        for row in self._scheduler.rows:
            row.forgotten = True

    def tell_cache(self) -> None:
        """Say what the bank holds, where that has changed."""
        if self._bank is not None and self._bank.changed and self._on_cache is not None:
            self._on_cache(self._bank.told())

    @property
    def _batch(self) -> list[Row]:
        return self._rows.rows if self._rows is not None else []

    def _left(self, row: Row) -> int:
        """Tokens of a prompt that are still to be read; one that is not begun is looked up in the bank once."""
        prefill = self._prefills.get(row)
        if prefill is not None:
            return prefill.total - prefill.done
        if row not in self._lengths:
            prompt = row.request.prompt
            whole = row.request.prompt_logprobs is not None
            cached = 0 if self._bank is None or whole else self._bank.known(prompt, row.request.cache_scope)
            self._lengths[row] = len(prompt) - 1 - cached
        return self._lengths[row]

    def _guarded(self, rows: list[Row], work: Callable[[], None]) -> None:
        """A failure ends the rows it touched, with its words, and leaves the engine running."""
        try:
            work()
            return
        except Exception as error:
            log.exception("a turn failed")
            scarce = out_of_memory(error)
            words = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        # The error is gone here, and with it what its traceback held of the arrays.
        for row in rows:
            row.end("error", str(ran_out(len(rows))) if scarce else words)
        self._drop_ended()
        if scarce:
            if self._bank is not None:
                self._bank.clear()
            mx.clear_cache()

    def _extend(self) -> None:
        """End the rows whose answers have outgrown the memory set aside for them, where there is no more."""
        room = self._reserved.room
        for row in self._batch:
            if row.finished is None and not self._reserved.extend(row):
                row.end("error", str(no_more_room(len(row.request.prompt), len(row.made))))
        self._drop_ended()
        if self._reserved.room < room:
            self._shrink_bank()

    def _shrink_bank(self) -> None:
        """Rows go before prefixes: these may have what is left."""
        if self._bank is not None:
            self._bank.shrink_to(self._reserved.room)

    def _read(self, row: Row, chunk: int) -> None:
        prefill = self._prefills.get(row)
        if prefill is None:
            self._shrink_bank()
            think_opens = None if self._chat.think_ids is None else self._chat.think_ids[0]
            prefill = self._prefills[row] = Prefill(
                self._spec, row, self._bank, self._chat.eos_ids, think_opens, self._readers
            )
            row.prefill_started(prefill.cached)
        scores = None
        if not prefill.finished:
            begun, before = time.perf_counter(), prefill.done
            scores = prefill.advance(chunk)
            self._scheduler.chunks.observe(prefill.done - before, time.perf_counter() - begun)
            self._shrink_bank()  # of what it has left there
        self._landed_at = None
        logprobs = () if scores is None else told(scores, row.request.prompt_logprobs or 0, self._chat.token_bytes)
        row.emit(
            PrefillEvent(
                row.request.id, time.monotonic(), prefill.done, prefill.total, prefill.cached, prefill.miss, logprobs
            )
        )
        if prefill.finished and row.request.max_tokens == 0:
            row.prefill_done()
            row.end("length")
        elif prefill.finished:
            self._planner.admit(row)
            joining = prefill.rows()
            joined = joining if self._rows is None else Rows.merge([self._rows, joining])
            mx.eval(joined.arrays())  # where this fails the others still have their own arrays
            row.prefill_done()
            self._rows = joined
            del self._prefills[row]
            self._lengths.pop(row, None)
            self._scheduler.start(row)
        if self._frugal:
            mx.clear_cache()

    def _land_ahead(self) -> None:
        ahead, self._flight = self._flight, None
        if ahead is not None:
            self._land(ahead)

    def _step(self) -> None:
        ahead, self._flight = self._flight, None
        if ahead is not None and self._planner.waits(ahead.rows):
            self._land(ahead)
            self._drop_ended()
            ahead = None
        try:
            if self._rows is not None:
                self._flight = self._launch(self._rows, behind=ahead is not None)
        finally:
            if ahead is not None:
                self._land(ahead)

    def _launch(self, rows: Rows, behind: bool) -> Flight:
        """Build a step behind the one in flight and start it; nothing is read."""
        plan = self._planner.plan(rows.rows)
        launched_at = time.perf_counter()
        outcome = speculate(self._spec, rows, plan)
        built_at = time.perf_counter()
        mx.async_eval(outcome, rows.arrays())  # type: ignore[no-untyped-call]  # untyped in its stubs
        landing = None if self._bank is None else Landing.of(rows)
        return Flight(list(rows.rows), plan, outcome, behind, landing, launched_at, built_at, time.perf_counter())

    def _land(self, flight: Flight) -> None:
        """Read a step and hand out what it gave."""
        asked_at = time.perf_counter()
        ints: Any = flight.outcome.ints.tolist()
        now = time.perf_counter()
        seconds, typical = now - (self._landed_at or flight.launched_at), self._landed_at is not None
        self._landed_at = now
        plan = flight.plan
        outcomes: list[RowOutcome] = []
        for place, (row, limit, numbers) in enumerate(zip(flight.rows, plan.limits, ints, strict=True)):
            if row.finished is not None:
                continue
            accepted, broken = numbers[2 * plan.depth + 1 :]
            if broken:
                row.end("error", str(NumericalError(NOT_FINITE)))
                continue
            if row.grammar is not None and row.grammar.error is not None:
                row.end("error", row.grammar.error)
                continue
            source = plan.source(place)
            outcomes.append(RowOutcome(source, min(accepted + 1, limit), accepted))
            tokens, drafts = numbers[: accepted + 1], numbers[plan.depth + 1 : plan.depth + 1 + limit]
            result = RowStep(tokens, drafts, source, self._logprobs(row, place, tokens, flight.outcome))
            before = len(row.made)
            context = len(row.request.prompt) + before + accepted + 1
            ended = row.step(result, seconds, len(flight.rows), context)
            if ended and flight.landing is not None and not row.forgotten:
                self._ended.append(Ended(row, flight.landing, place, accepted + 1, len(row.made) - before))
        if self._rows is not None:
            self._rows.tighten(in_flight=self._flight.plan.depth + 1 if self._flight is not None else 0)
        self._planner.observe(plan, flight.rows, outcomes, seconds if typical and self._alone(flight) else None)
        if typical and self._on_step is not None:
            build, dispatch = flight.built_at - flight.launched_at, flight.sent_at - flight.built_at
            self._on_step(StepTimes(plan.depth, build, dispatch, now - asked_at, time.perf_counter() - now, seconds))

    def _alone(self, flight: Flight) -> bool:
        """Whether the time since the step in front was read is this step's own.

        Of two that overlap it is a part of each: on a CPU, which takes a step only while it works, the next one's. So
        they must be of one kind, and steps that are read before the next one is launched must follow each other.
        """
        behind = self._flight
        if behind is None or not flight.behind:
            return behind is None and not flight.behind
        same = behind.plan.depth == flight.plan.depth and len(behind.rows) == len(flight.rows)
        return same and set(behind.plan.sources) == set(flight.plan.sources)

    def _logprobs(self, row: Row, place: int, tokens: list[int], outcome: Outcome) -> tuple[TokenLogprob, ...]:
        if row.request.logprobs is None or outcome.logprobs is None:
            return ()
        values: Any = outcome.logprobs[place].tolist()
        ids: Any = [[]] * len(values) if outcome.likeliest is None else outcome.likeliest[place].tolist()
        return told(Scores(tokens, values, ids), row.request.logprobs, self._chat.token_bytes)

    def _keep_answers(self) -> None:
        """Leave the answers that have ended in the bank. Where that fails they are lost for it, and nothing else is."""
        ended, self._ended = self._ended, []
        for each in ended:
            self._guarded([], partial(self._keep_answer, each))

    def _keep_answer(self, ended: Ended) -> None:
        if self._bank is not None and self._rows is not None and ended.row in self._rows.rows:
            answers.keep(self._spec, self._bank, self._rows, ended)
            self._shrink_bank()

    def _drop_ended(self) -> None:
        self._keep_answers()
        keep = self._scheduler.drop_ended()
        for rows in (self._prefills, self._lengths):
            for row in [row for row in rows if row.finished is not None]:
                del rows[row]
        self._reserved.keep(self._scheduler.begun)
        if self._rows is None or len(keep) == len(self._rows):
            return
        self._rows = self._rows.select(keep) if keep else None
        if self._rows is None:
            self._flight = None
