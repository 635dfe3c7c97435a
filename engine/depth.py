"""How many tokens to draft in the next step. Plain arithmetic, no mlx."""

from collections import deque
from statistics import median
from typing import Protocol

SMOOTHING = 0.1  # weight of the newest observation in a running mean
SETTLE = 8  # steps before the first look at another depth
PROBE_FIRST, PROBE_LAST = 16, 256  # steps between two looks, growing while nothing changes
PROBE_STEPS = 4
RECENT = 9  # steps whose median is a depth's cost, so that one slow step decides nothing
START = 3


class DepthPolicy(Protocol):
    """Chooses the depth of each step from what earlier steps cost and gave."""

    def choose(self) -> int: ...

    def observe(self, depth: int, judged: list[int], accepted: list[int], seconds: float) -> None:
        """Take in a step: for each place, rows in which it was judged and in which it was accepted; wall seconds."""


class FixedDepth:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self) -> int:
        return self._depth

    def observe(self, depth: int, judged: list[int], accepted: list[int], seconds: float) -> None:
        pass


class CostAwareDepth:
    """The depth with the most tokens a second: (1 + a1 + a1 a2 + ...) / seconds of a step.

    a_i is the running acceptance of place i given that it was judged, seconds the median of a depth's latest steps;
    depths that were not tried yet are put on a straight line through those that were. A neighbour of the best depth is
    tried for a few steps now and then, rarer the longer nothing changes. Depth 0 is one of the choices, so that
    drafting never goes on where it does not pay.
    """

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._acceptance: list[float | None] = [None] * deepest
        self._seconds: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(deepest + 1)]
        self._current = min(START, deepest)
        self._interval = PROBE_FIRST
        self._left = SETTLE
        self._probe: int | None = None
        self._probe_above = True

    def choose(self) -> int:
        return self._current if self._probe is None else self._probe

    def observe(self, depth: int, judged: list[int], accepted: list[int], seconds: float) -> None:
        for place, rows in enumerate(judged):
            if rows:
                self._acceptance[place] = _mean(self._acceptance[place], accepted[place] / rows)
        self._seconds[depth].append(seconds)
        self._left -= 1
        if self._left > 0:
            return
        if self._probe is None:
            self._probe, self._left = self._neighbour(), PROBE_STEPS
        else:
            self._settle()

    def _settle(self) -> None:
        """End a probe: go where the figures point, and look again sooner if that is somewhere new."""
        best = max(range(self._deepest + 1), key=self._rate)
        self._interval = PROBE_FIRST if best != self._current else min(2 * self._interval, PROBE_LAST)
        self._current, self._probe, self._left = best, None, self._interval

    def _neighbour(self) -> int:
        """The next depth to try: above and below the current one by turns, as far as there is one."""
        self._probe_above = not self._probe_above
        wanted = self._current + (1 if self._probe_above else -1)
        return wanted if 0 <= wanted <= self._deepest else 2 * self._current - wanted

    def _rate(self, depth: int) -> float:
        tokens, chance, latest = 1.0, 1.0, 1.0
        for place in range(depth):
            known = self._acceptance[place]
            latest = latest if known is None else known
            chance *= latest
            tokens += chance
        return tokens / self._cost(depth)

    def _cost(self, depth: int) -> float:
        if self._seconds[depth]:
            return median(self._seconds[depth])
        tried = [(d, median(seconds)) for d, seconds in enumerate(self._seconds) if seconds]
        (low, low_cost), (high, high_cost) = tried[0], tried[-1]
        slope = max(0.0, (high_cost - low_cost) / (high - low)) if high > low else 0.0
        return max(low_cost + slope * (depth - low), 0.1 * low_cost)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + SMOOTHING * (now - before)
