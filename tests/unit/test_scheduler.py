"""Admission and order, and the depth policy: plain arithmetic."""

import random
from typing import Any

from engine.depth import CostAwareDepth, FixedDepth
from engine.scheduler import CHUNK_ALONE, CHUNK_BESIDE_ROWS, Scheduler


class Waiting:
    """As much of a row as the scheduler looks at."""

    def __init__(self, name: str) -> None:
        self.request = type("R", (), {"id": name})
        self.finished: str | None = None


def scheduler(rows: int, names: str) -> tuple[Any, dict[str, Any]]:
    it, made = Scheduler(rows), {name: Waiting(name) for name in names}
    for row in made.values():
        it.add(row)  # type: ignore[arg-type]
    return it, made


def admit(it: Any) -> str:
    row = it.plan().prefill
    it.start(row)
    return row.request.id


def test_first_come_first_served_up_to_the_limit() -> None:
    it, rows = scheduler(2, "abc")
    assert [admit(it), admit(it)] == ["a", "b"]
    assert it.plan().prefill is None
    rows["a"].finished = "stop"
    assert it.drop_ended() == [1]
    assert admit(it) == "c"
    assert [row.request.id for row in it.running] == ["b", "c"]


def test_a_prompt_is_read_in_smaller_chunks_beside_running_rows() -> None:
    it, _ = scheduler(2, "ab")
    assert it.plan().chunk == CHUNK_ALONE
    admit(it)
    assert it.plan().chunk == CHUNK_BESIDE_ROWS


def test_ended_rows_leave_from_every_stage() -> None:
    it, rows = scheduler(2, "abc")
    admit(it)
    it.plan()
    assert it.reading is rows["b"]
    for row in rows.values():
        row.finished = "cancelled"
    assert it.drop_ended() == []
    assert it.idle


def simulate(acceptance: list[float], costs: list[float], steps: int = 2500) -> tuple[float, float]:
    """Tokens a second of the policy, and of the best fixed depth, on a machine with these costs."""
    draw, policy = random.Random(4), CostAwareDepth(len(acceptance))

    def run(depth: int) -> tuple[list[int], list[int], int]:
        judged, accepted = [0] * depth, [0] * depth
        for place in range(depth):
            judged[place] = 1
            if draw.random() > acceptance[place]:
                return judged, accepted, place + 1
            accepted[place] = 1
        return judged, accepted, depth + 1

    tokens = seconds = 0.0
    for _ in range(steps):
        depth = policy.choose()
        judged, accepted, made = run(depth)
        cost = costs[depth] * draw.uniform(0.9, 1.1)
        policy.observe(depth, judged, accepted, cost)
        tokens, seconds = tokens + made, seconds + cost
    best = max(sum(run(depth)[2] for _ in range(steps)) / (steps * costs[depth]) for depth in range(len(costs)))
    return tokens / seconds, best


def test_the_policy_finds_the_best_depth_on_a_flat_machine() -> None:
    got, best = simulate([0.95] * 8, [1 + 0.05 * d for d in range(9)])
    assert got > 0.93 * best


def test_the_policy_gives_up_drafting_where_it_does_not_pay() -> None:
    got, best = simulate([0.2] * 8, [1 + 0.9 * d for d in range(9)])
    assert best == 1.0 or best > 0.97
    assert got > 0.9 * best


def test_a_fixed_depth_stays() -> None:
    policy = FixedDepth(4)
    policy.observe(4, [1] * 4, [0] * 4, 1.0)
    assert policy.choose() == 4
