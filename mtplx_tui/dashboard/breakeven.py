"""How often a draft at some depth must hold for that depth to pay, from what steps took here."""

from collections.abc import Iterable, Sequence
from statistics import median

from engine.events import StepEvent
from mtplx_tui.charts.bars import DepthRate

MIN_STEPS = 5
"""Steps of a depth below which its time is not yet known."""


def step_seconds(steps: Iterable[StepEvent]) -> dict[int, float]:
    """Median seconds of a step by how many tokens it drafted; only steps that one request had for itself."""
    times: dict[int, list[float]] = {}
    for step in steps:
        if step.rows == 1:
            times.setdefault(step.drafted, []).append(step.seconds)
    return {depth: median(found) for depth, found in times.items() if len(found) >= MIN_STEPS}


def break_even(rates: Sequence[DepthRate], seconds: dict[int, float]) -> dict[int, float]:
    """Share of steps that must accept all of 1..d for depth d to be worth its time over d - 1, for each known d.

    A step at depth d gives 1 + c1 + ... + cd tokens in seconds[d]; going from d - 1 to d pays where cd is above
    (tokens at d - 1) x (added seconds) / (seconds at d - 1).
    """
    found: dict[int, float] = {}
    tokens = 1.0
    for rate in rates:
        before, after = seconds.get(rate.depth - 1), seconds.get(rate.depth)
        if before and after:
            found[rate.depth] = max(tokens * (after - before) / before, 0.0)
        tokens += rate.cumulative
    return found


def advice(rates: Sequence[DepthRate], needed: dict[int, float]) -> str:
    """One sentence on whether the deepest depth whose price is known pays."""
    known = [rate for rate in rates if rate.depth in needed]
    if not known:
        return "break-even n/a (too few depths ran)"
    last = known[-1]
    need = needed[last.depth]
    word = "pays" if last.cumulative >= need else "does not pay"
    sign = ">=" if last.cumulative >= need else "<"
    return f"d{last.depth} {word}: {last.cumulative:.2f} {sign} {need:.2f} needed"
