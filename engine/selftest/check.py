"""What a self-test says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One claim: whether it held, the figure that says so, and what the figure is."""

    name: str
    passed: bool
    figure: float
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All checks of one model; `passed` is true where every one did."""

    model: str
    passed: bool
    checks: tuple[Check, ...]
