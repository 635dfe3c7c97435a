"""How many tokens to draft in the next step. Plain arithmetic, no mlx."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

SMOOTHING = 0.05  # weight of the newest observation in a running mean
BELIEF = 4  # observations that a guess about a place counts for
SETTLE = 8  # steps before the first look at another depth
PROBE_FIRST, PROBE_LAST = 16, 256  # steps between two looks, growing while nothing changes
PROBE_STEPS = 4
RECENT = 25  # steps from which a depth's cost is taken
GAIN = 1.01  # times as fast as the present depth must another look, or two that are alike would take turns


class DepthPolicy(Protocol):
    """Chooses the depth of each step from what earlier steps cost and gave."""

    def choose(self, rows: int) -> int:
        """Drafts of the next step of a batch of so many rows."""

    def observe(
        self, rows: int, depth: int, judged: Sequence[int], accepted: Sequence[int], seconds: float | None
    ) -> None:
        """Take in a step: for each place, rows in which it was judged and in which it was accepted; its wall seconds,
        None where no clean time of this step alone is known."""


class FixedDepth:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, rows: int) -> int:
        return self._depth

    def observe(
        self, rows: int, depth: int, judged: Sequence[int], accepted: Sequence[int], seconds: float | None
    ) -> None:
        pass


class CostAwareDepth:
    """The depth with the most tokens a second: (1 + a1 + a1 a2 + ...) / seconds of a step.

    a_i is the running acceptance of place i given that it was judged; seconds are the lower quartile of a depth's last
    steps with as many rows, since whatever else the machine does can only slow a step, and depths are not tried at the
    same time. A neighbour of the best depth is tried for a few steps now and then, rarer the longer nothing changes; so
    is any other that was not timed yet, once it looks better by what the others cost. It stays only where it has timed
    steps. Depth 0 is one of the choices, so that drafting never goes on where it does not pay.

    Args:
        deepest: largest depth. start: the first one to use.
        seconds: what steps of one row cost, from depth 0 on, where that was measured before.
        acceptance: what is known of that, from the first place on.
        excluded: depths that are never used.
    """

    def __init__(
        self,
        deepest: int,
        start: int,
        seconds: Sequence[float] = (),
        acceptance: Sequence[float] = (),
        excluded: Sequence[int] = (),
    ) -> None:
        self._depths = [depth for depth in range(deepest + 1) if depth not in excluded]
        self._start = start if start in self._depths else self._depths[-1]
        self._acceptance = [_Acceptance(known, observed=True) for known in acceptance[:deepest]]
        self._batches: dict[int, _Batch] = {}
        self._known = dict(enumerate(seconds[: deepest + 1]))

    def choose(self, rows: int) -> int:
        return self._batch(rows).choose()

    def observe(
        self, rows: int, depth: int, judged: Sequence[int], accepted: Sequence[int], seconds: float | None
    ) -> None:
        for place, count in enumerate(judged):
            if count:
                self._place(place).add(accepted[place] / count)
        self._batch(rows).observe(depth, seconds, self._tokens())

    def _place(self, place: int) -> "_Acceptance":
        """What is known of a place; one that was never judged is taken for as good as the one before it."""
        while place >= len(self._acceptance):
            self._acceptance.append(_Acceptance(self._acceptance[-1].mean if self._acceptance else 1.0))
        return self._acceptance[place]

    def _batch(self, rows: int) -> "_Batch":
        if rows not in self._batches:
            near = min(self._batches, key=lambda other: abs(other - rows), default=None)
            start = self._start if near is None else self._batches[near].current
            self._batches[rows] = _Batch(self._depths, start, self._known if rows == 1 else {})
        return self._batches[rows]

    def _tokens(self) -> list[float]:
        """Tokens a step from depth 0 on."""
        tokens, chance, latest = [1.0], 1.0, 1.0
        for place in range(self._depths[-1]):
            latest = self._acceptance[place].mean if place < len(self._acceptance) else latest
            chance *= latest
            tokens.append(tokens[-1] + chance)
        return tokens


class _Acceptance:
    """A running mean that begins as the plain one, with a guess for its first observations."""

    def __init__(self, guess: float, *, observed: bool = False) -> None:
        self.mean = guess
        self._count = round(1 / SMOOTHING) if observed else BELIEF

    def add(self, share: float) -> None:
        self._count += 1
        self.mean += max(SMOOTHING, 1 / self._count) * (share - self.mean)


class _Batch:
    """The search for the best depth with one number of rows: what each depth costs there, and when to look again."""

    def __init__(self, depths: Sequence[int], start: int, seconds: Mapping[int, float]) -> None:
        self._depths = depths
        self._seconds = {depth: deque([seconds[depth]] if depth in seconds else [], RECENT) for depth in depths}
        self.current = start
        self._interval = PROBE_FIRST
        self._left = SETTLE
        self._probe: int | None = None
        self._probe_above = True

    def choose(self) -> int:
        return self.current if self._probe is None else self._probe

    def observe(self, depth: int, seconds: float | None, tokens: Sequence[float]) -> None:
        if seconds is not None and depth in self._seconds:  # not where a request that has left named its own
            self._seconds[depth].append(seconds)
        self._left -= 1
        if self._left > 0:
            return
        if self._probe is None:
            self._probe, self._left = self._neighbour(), PROBE_STEPS
        else:
            self._settle(tokens)

    def _settle(self, tokens: Sequence[float]) -> None:
        """End a probe: go where the figures point, and look again sooner if that is somewhere new."""
        ended, self._probe = self._probe, None
        tried = [depth for depth in self._depths if self._seconds[depth]]
        if not tried:
            self._interval = self._left = min(2 * self._interval, PROBE_LAST)
            return
        speed = {depth: tokens[depth] / self._cost(depth) for depth in self._depths}
        best = max(tried, key=speed.__getitem__)
        moves = self.current not in tried or speed[best] > GAIN * speed[self.current]
        self._interval = self._left = PROBE_FIRST if moves else min(2 * self._interval, PROBE_LAST)
        if moves:
            self.current = best
        hoped = max(self._depths, key=speed.__getitem__)
        if hoped not in (*tried, ended) and speed[hoped] > GAIN * speed[self.current]:
            self._probe, self._left = hoped, PROBE_STEPS

    def _neighbour(self) -> int:
        """The next depth to try: above and below the current one by turns, as far as there is one."""
        self._probe_above = not self._probe_above
        place = self._depths.index(self.current)
        wanted = place + (1 if self._probe_above else -1)
        return self._depths[wanted if 0 <= wanted < len(self._depths) else 2 * place - wanted]

    def _cost(self, depth: int) -> float:
        """Seconds of a step; depths that were not tried lie on a straight line through those that were, if any."""
        if self._seconds[depth]:
            return _lower_quartile(self._seconds[depth])
        tried = [(d, _lower_quartile(seconds)) for d, seconds in self._seconds.items() if seconds]
        (low, low_cost), (high, high_cost) = tried[0], tried[-1]
        slope = max(0.0, (high_cost - low_cost) / (high - low)) if high > low else 0.0
        return max(low_cost + slope * (depth - low), 0.1 * low_cost)


def _lower_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 4]
