"""Settings of the interpreter under which a screen and an engine share it."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0005
"""After each wait of the engine outside the interpreter lock it has to win it back, and that takes up to this long
while the screen is drawing. Python's own 5 ms costs the engine 6 % more."""

GC_THRESHOLDS = (20_000, 50, 1_000)
"""Screens make many cyclic objects; a full collection of theirs stops the engine for 80 to 260 ms."""


@contextmanager
def shared_interpreter() -> Iterator[None]:
    """Tuned inside, as before outside. Nothing is collected on entry: the user is about to type."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        gc.unfreeze()


def collect(freeze: bool) -> None:
    """Collect garbage at a moment when nobody waits; with `freeze`, what is left is never traversed again."""
    gc.collect()
    if freeze:
        gc.freeze()
