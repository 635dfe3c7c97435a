"""Admission, order and chunks, and the depth policy: plain arithmetic."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler import (
    FIRST_CHUNK,
    PASSED_OVER,
    RECENT,
    SHORT_FIRST,
    SMALLEST_CHUNK,
    ChunkSize,
    Plan,
    Scheduler,
)


class Waiting:
    """As much of a row as the scheduler looks at, with its prompt and its answer as numbers of tokens."""

    def __init__(
        self, name: str, prompt: int = 1, answer: int = 1, priority: str = "interactive", scope: str = ""
    ) -> None:
        self.request = type("R", (), {"id": name, "priority": priority, "cache_scope": scope})
        self.finished: str | None = None
        self.left = prompt
        self.answer = answer

    def __repr__(self) -> str:
        return str(self.request.id)


class Desk:
    """A scheduler with what the engine does for it: reading, decoding one token a turn, and a memory of `tokens`."""

    def __init__(self, max_rows: int, tokens: int = 10**9) -> None:
        self.it: Any = Scheduler(max_rows, ChunkSize(512, 0.25), lambda row: row.left, self._reserve)
        self.tokens = tokens
        self.held: dict[Any, int] = {}
        self.begun: list[Any] = []
        self.ended: list[Any] = []

    def add(self, *args: Any, **kwargs: Any) -> Any:
        row: Any = Waiting(*args, **kwargs)
        self.it.add(row)
        return row

    def _reserve(self, row: Any) -> bool:
        need = row.left + row.answer
        if sum(self.held.values()) + need > self.tokens:
            return False
        self.held[row] = need
        self.begun.append(row)
        return True

    def turn(self) -> Plan:
        plan: Plan = self.it.plan()
        row: Any = plan.prefill
        if row is not None:
            row.left -= min(row.left, plan.chunk)
            if not row.left:
                self.it.start(row)
        for running in self.it.running:
            running.answer -= 1
            if running.answer <= 0:
                self.end(running, "length")
        self.it.drop_ended()
        return plan

    def end(self, row: Any, reason: str) -> None:
        assert row.finished is None, "a row ends once"
        row.finished = reason
        self.held.pop(row, None)
        self.ended.append(row)


def test_a_caller_that_sends_many_does_not_keep_another_one_waiting() -> None:
    desk = Desk(2)
    many = [desk.add(f"m{number}", scope="many") for number in range(6)]
    one = desk.add("one", scope="one")
    for _ in range(20):
        desk.turn()
    assert desk.begun[:2] == [many[0], one]
    assert desk.begun[2:] == many[1:], "and its own go on in the order in which they came"


def test_first_come_first_served_up_to_the_limit() -> None:
    desk = Desk(2)
    a, b, c = (desk.add(name, answer=3) for name in "abc")
    desk.turn()
    desk.turn()
    assert desk.it.running == [a, b]
    assert desk.it.plan().prefill is None
    desk.end(a, "stop")
    assert desk.it.drop_ended() == [1]
    desk.turn()
    assert desk.it.running == [b, c]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    desk = Desk(8)
    desk.add("long", prompt=100_000)
    for _ in range(3):
        desk.turn()
    short = desk.add("short", prompt=FIRST_CHUNK)
    assert desk.turn().prefill is short
    assert short in desk.ended


def test_a_long_prompt_gets_its_share_while_short_ones_keep_coming() -> None:
    desk = Desk(8)
    long = desk.add("long", prompt=1000)
    before = long.left
    for turn in range(4 * (SHORT_FIRST + 1)):
        desk.add(f"short{turn}", prompt=SMALLEST_CHUNK)
        desk.turn()
    assert before - long.left >= 4 * SMALLEST_CHUNK


def test_interactive_goes_before_batch_but_not_for_ever() -> None:
    desk = Desk(1)
    batch = desk.add("batch", priority="batch")
    others = [desk.add(f"i{n}") for n in range(3 * PASSED_OVER)]
    while not desk.it.idle:
        desk.turn()
    assert desk.begun == [*others[:PASSED_OVER], batch, *others[PASSED_OVER:]]


def test_batch_prompts_are_read_when_no_interactive_one_waits() -> None:
    desk = Desk(4)
    batch = desk.add("batch", prompt=64, priority="batch")
    desk.it.plan()
    interactive = desk.add("interactive", prompt=5000)
    assert [desk.turn().prefill for _ in range(SHORT_FIRST)] == [interactive] * SHORT_FIRST
    assert desk.turn().prefill is batch


def test_nobody_is_begun_past_a_row_that_waits_for_memory() -> None:
    desk = Desk(8, tokens=1000)
    running = desk.add("running", prompt=100, answer=500)
    desk.turn()
    large, small = desk.add("large", prompt=500, answer=400), desk.add("small", prompt=1, answer=1)
    desk.turn()
    assert desk.begun == [running]
    desk.end(running, "cancelled")
    desk.it.drop_ended()
    desk.turn()
    assert desk.begun == [running, large, small]


def test_ended_rows_leave_from_every_stage() -> None:
    desk = Desk(2)
    rows = [desk.add("a", answer=9), desk.add("b", prompt=9999), desk.add("c"), desk.add("d", priority="batch")]
    desk.turn()
    assert (desk.it.running, desk.it.reading) == ([rows[0]], [rows[1]])
    for row in rows:
        row.finished = "cancelled"
    assert desk.it.drop_ended() == []
    assert desk.it.idle


def test_a_lone_prompt_is_read_in_the_profiles_chunks_and_others_in_measured_ones() -> None:
    desk = Desk(2)
    desk.add("a", prompt=2000, answer=99)
    assert desk.turn().chunk == 512
    desk.add("b", prompt=2000)
    assert desk.turn().chunk == FIRST_CHUNK
    desk.it.chunks.observe(128, 0.3)
    assert desk.turn().chunk == 64


@pytest.mark.parametrize(("fixed", "token"), [(0.0, 0.001), (0.05, 0.001), (0.2, 0.0005), (0.0, 1e-6), (0.0, 0.1)])
def test_chunks_settle_at_a_size_that_keeps_to_the_stall(fixed: float, token: float) -> None:
    chunks = ChunkSize(1024, 0.25)
    for _ in range(20):
        size = chunks.beside()
        chunks.observe(size, fixed + token * size)
    assert size == chunks.beside()
    assert size == SMALLEST_CHUNK or fixed + token * size <= 0.25
    assert size in (32, 64, 128, 256, 512, 1024)
    if fixed == 0.0 and token < 0.001:
        assert size == 1024


def test_one_slow_chunk_is_forgotten() -> None:
    chunks = ChunkSize(512, 0.25)
    chunks.observe(128, 20.0)
    assert chunks.beside() == SMALLEST_CHUNK
    for _ in range(RECENT):
        chunks.observe(SMALLEST_CHUNK, 0.01)
    assert chunks.beside() == 512


Op = tuple[Literal["add", "cancel", "turn"], int, int, bool]
OPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "cancel", "turn", "turn"]), st.integers(1, 900), st.integers(1, 40), st.booleans()
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(ops=OPS, max_rows=st.integers(1, 5), memory=st.integers(940, 4000))
def test_whatever_comes_every_request_ends_once_and_in_its_order(ops: list[Op], max_rows: int, memory: int) -> None:
    desk, rows = Desk(max_rows, memory), []
    for number, (kind, prompt, answer, batch) in enumerate(ops):
        if kind == "add":
            rows.append(desk.add(str(number), prompt, answer, "batch" if batch else "interactive"))
        elif kind == "cancel" and rows and rows[prompt % len(rows)].finished is None:
            desk.end(rows[prompt % len(rows)], "cancelled")
            desk.it.drop_ended()
        else:
            desk.turn()
        assert len(desk.it.begun) <= max_rows
        assert sum(desk.held.values()) <= memory
        assert set(desk.held) == set(desk.it.begun)
    turns = 0
    while not desk.it.idle:
        desk.turn()
        turns += 1
        assert turns < 100 + sum(row.left // SMALLEST_CHUNK + row.answer + 2 for row in rows) + 64 * len(rows)
    assert sorted(map(str, desk.ended)) == sorted(map(str, rows))
    for priority in ("interactive", "batch"):
        begun = [row for row in desk.begun if row.request.priority == priority]
        assert begun == sorted(begun, key=lambda row: int(str(row)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 3))
def test_a_batch_row_is_begun_after_a_bounded_number_of_others(waiting: list[bool], max_rows: int) -> None:
    desk = Desk(max_rows)
    rows = [desk.add(str(n), priority="batch" if batch else "interactive") for n, batch in enumerate(waiting)]
    late = 0
    while not desk.it.idle:
        desk.add(f"1000{late}")  # an interactive one comes every turn, as long as there is anybody else
        late += 1
        desk.turn()
        if all(row.finished for row in rows):
            break
        assert late < 2 * (PASSED_OVER + 2) * (len(rows) + 1)
