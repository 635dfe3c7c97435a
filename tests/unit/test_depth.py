"""The depth policies on simulated machines."""

import random

from engine.depth import CostAwareDepth, FixedDepth


def simulate(acceptance: list[float], costs: list[float], steps: int = 2500) -> tuple[float, float]:
    """Tokens a second of the policy, and of the best fixed depth, on a machine with these costs."""
    draw, policy = random.Random(4), CostAwareDepth(len(acceptance), start=3)

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
        depth = policy.choose(rows=1)
        judged, accepted, made = run(depth)
        cost = costs[depth] * draw.uniform(0.9, 1.1)
        policy.observe(1, depth, judged, accepted, cost)
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
    policy.observe(1, 4, [1] * 4, [0] * 4, 1.0)
    assert policy.choose(rows=1) == 4
