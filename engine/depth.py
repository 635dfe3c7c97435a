"""How many tokens to draft in the next step. Plain arithmetic, no mlx."""

from typing import Protocol

SMOOTHING = 0.1  # weight of the newest observation in a running mean
PROBE_EVERY = 64  # steps between two looks at a depth that is not in use
PROBE_STEPS = 4
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

    a_i is the running acceptance of place i given that it was judged, seconds the running time of a step at each
    depth. A neighbour of the best depth is tried for a few steps now and then, so that its figures stay fresh; depth 0
    is one of the choices, so that drafting never goes on where it does not pay.
    """

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._acceptance = [0.7] * deepest
        self._seconds: list[float | None] = [None] * (deepest + 1)
        self._current = min(START, deepest)
        self._steps = 0
        self._probe: int | None = None
        self._probe_above = True

    def choose(self) -> int:
        return self._current if self._probe is None else self._probe

    def observe(self, depth: int, judged: list[int], accepted: list[int], seconds: float) -> None:
        for place, rows in enumerate(judged):
            if rows:
                self._acceptance[place] += SMOOTHING * (accepted[place] / rows - self._acceptance[place])
        before = self._seconds[depth]
        self._seconds[depth] = seconds if before is None else before + SMOOTHING * (seconds - before)
        self._steps += 1
        phase = self._steps % PROBE_EVERY
        if self._probe is None and phase == 0:
            self._probe = self._neighbour()
        elif self._probe is not None and phase == PROBE_STEPS:
            self._probe = None
            self._current = self._best()

    def _neighbour(self) -> int | None:
        """The next depth to try: above and below the current one by turns."""
        self._probe_above = not self._probe_above
        wanted = self._current + (1 if self._probe_above else -1)
        return wanted if 0 <= wanted <= self._deepest else None

    def _best(self) -> int:
        measured = [depth for depth, seconds in enumerate(self._seconds) if seconds is not None]
        return max(measured, key=self._rate)

    def _rate(self, depth: int) -> float:
        seconds = self._seconds[depth]
        assert seconds is not None
        tokens, chance = 1.0, 1.0
        for place in range(depth):
            chance *= self._acceptance[place]
            tokens += chance
        return tokens / seconds
