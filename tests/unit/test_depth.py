"""The depth policies on simulated machines."""

import random
from math import prod
from statistics import mean

import pytest

from engine.depth import CostAwareDepth, FixedDepth

MILLISECONDS = [21.1, 26.0, 31.0, 37.0, 45.0, 49.0, 56.3, 62.0, 67.5]
"""Of the processor for a step of demo-13m, from depth 0 on; 1 to 5 in a noisier run."""
ACCEPTED = {  # how often the draft at each place stood where it was judged, over greedy answers of demo-13m
    "prose": [0.94, 0.95, 0.96, 0.93, 0.93, 0.92, 0.92, 0.93],
    "code": [1.0, 1.0, 1.0, 0.98, 0.96, 0.96, 0.96, 0.97],
}


def simulate(acceptance: list[float], costs: list[float], steps: int = 2500, seed: int = 4) -> float:
    """The policy's tokens a second over those of the best fixed depth, on a machine with these costs.

    What it is told is drawn, and the times are noisy; what it is judged by is what its choices give in the mean.
    """
    draw, policy = random.Random(seed), CostAwareDepth(len(acceptance), start=3)
    expected = [sum(prod(acceptance[:place]) for place in range(depth + 1)) for depth in range(len(costs))]
    tokens = seconds = 0.0
    for _ in range(steps):
        depth = policy.choose(rows=1)
        stood = 0
        while stood < depth and draw.random() < acceptance[stood]:
            stood += 1
        judged = [int(place <= stood) for place in range(depth)]
        accepted = [int(place < stood) for place in range(depth)]
        slow = draw.uniform(1.3, 3.0) if draw.random() < 0.03 else 1.0
        policy.observe(1, depth, judged, accepted, costs[depth] * slow * draw.uniform(0.9, 1.1))
        tokens, seconds = tokens + expected[depth], seconds + costs[depth]
    return tokens / seconds / max(gained / cost for gained, cost in zip(expected, costs, strict=True))


def test_the_policy_finds_the_best_depth_on_a_flat_machine() -> None:
    assert simulate([0.95] * 8, [1 + 0.05 * d for d in range(9)]) > 0.97


def test_the_policy_gives_up_drafting_where_it_does_not_pay() -> None:
    assert simulate([0.2] * 8, [1 + 0.9 * d for d in range(9)]) > 0.97


@pytest.mark.parametrize("kind", ACCEPTED)
def test_on_what_was_measured_of_the_bundled_model_it_is_as_fast_as_the_best_depth(kind: str) -> None:
    ratios = [simulate(ACCEPTED[kind], MILLISECONDS, steps=800, seed=seed) for seed in range(10)]
    assert mean(ratios) > 0.97
    assert min(ratios) > 0.92


def test_a_time_that_is_not_a_steps_own_decides_nothing() -> None:
    """Where copied spans come and go, a step's time is nothing or twice its own: such a one is given as None."""
    policy = CostAwareDepth(3, start=2)
    for step in range(2000):
        depth = policy.choose(rows=1)
        judged = [1] * depth
        policy.observe(1, depth, judged, judged, None if depth == 3 or step % 3 else 1.0 + depth)
    assert policy.choose(rows=1) != 3


def test_where_no_step_can_be_timed_it_stays_where_it_began() -> None:
    policy, used = CostAwareDepth(8, start=3), []
    for _ in range(1000):
        depth = policy.choose(rows=1)
        used.append(depth)
        policy.observe(1, depth, [1] * depth, [1] * depth, None)
    assert used.count(3) > 900


@pytest.mark.parametrize("place", range(1, 8))
def test_a_draft_refused_at_its_places_first_trial_does_not_condemn_the_place(place: int) -> None:
    policy, refused, used = CostAwareDepth(8, start=3), False, []
    for _ in range(120):
        depth = policy.choose(rows=1)
        used.append(depth)
        stands = depth if refused or depth < place else place - 1
        refused = refused or depth >= place
        judged = [int(at <= stands) for at in range(depth)]
        policy.observe(1, depth, judged, [int(at < stands) for at in range(depth)], 1.0 + 0.1 * depth)
    assert used[-1] == 8


def test_a_fixed_depth_stays() -> None:
    policy = FixedDepth(4)
    policy.observe(1, 4, [1] * 4, [0] * 4, 1.0)
    assert policy.choose(rows=1) == 4
