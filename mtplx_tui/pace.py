"""How often the screen is brought up to date."""

BUSY_S = 1 / 12
IDLE_S = 0.25
SLOWEST_S = 0.25
SHARE = 0.03
"""The share of one core that drawing may take while tokens come. On a fast machine 12 updates a second cost less; on
a slow one the updates get fewer, not the tokens."""


class Pace:
    """Gives the pause before the next update, from what the last ones cost."""

    def __init__(self) -> None:
        self._cost = 0.0
        self._cpu: float | None = None

    def next(self, busy: bool, cpu: float) -> float:
        """Seconds to wait. `cpu` is the drawing thread's `time.thread_time()`: all its painting counts."""
        spent = 0.0 if self._cpu is None else cpu - self._cpu
        self._cpu = cpu
        if not busy:
            return IDLE_S
        self._cost += 0.2 * (spent - self._cost)
        return min(max(BUSY_S, self._cost / SHARE), SLOWEST_S)
