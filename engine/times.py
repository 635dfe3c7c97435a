"""Where the host's time in a step goes, for the step benchmark."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step as the engine ran it, in seconds.

    A step is built and sent while the one in front of it runs, so these do not add up within one step: they do over
    many.

    Attributes:
        build: making its graph. dispatch: handing the graph to the device.
        wait: blocked until its outcome was there. deliver: from there to the last event that it gave.
        wall: from the outcome of the step in front of it to its own.
    """

    depth: int
    build: float
    dispatch: float
    wait: float
    deliver: float
    wall: float
