"""Horizontal bars and columns. Every bar starts at 0 and has its number beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx_tui.glyphs import Glyphs


@dataclass(frozen=True, slots=True)
class DepthRate:
    """Acceptance at one depth over a window of steps.

    Attributes:
        cumulative: share of the steps that drafted this deep and accepted all of 1..depth.
        conditional: share of the steps accepted up to depth - 1 that accepted this one too; None where none was judged.
        drafted: steps that drafted this deep. judged: steps that got to this depth.
    """

    depth: int
    cumulative: float
    conditional: float | None
    drafted: int
    judged: int


def bar(fraction: float, width: int, glyphs: Glyphs) -> str:
    """A bar of `width` cells that is full at fraction 1, in steps of an eighth of a cell where the glyphs allow."""
    steps = len(glyphs.eighths)
    filled = round(min(max(fraction, 0.0), 1.0) * width * steps)
    whole, part = divmod(filled, steps)
    return (glyphs.eighths[-1] * whole + (glyphs.eighths[part - 1] if part else "")).ljust(width)


def meter(fraction: float, width: int, glyphs: Glyphs) -> str:
    """A meter with its empty part drawn; any use at all shows at least one full cell."""
    filled = min(width, max(round(fraction * width), 1 if fraction > 0 else 0))
    return glyphs.meter_full * filled + glyphs.meter_empty * (width - filled)


def depth_bars(rates: Sequence[DepthRate], width: int, glyphs: Glyphs) -> list[str]:
    """A header, then one line a depth: `d1 ██████▎  .91  .91  214`: bar and first number cumulative, conditional, n."""
    cells = max(width - 4 - FIGURES, 4)
    head = f"{'accepted':<{cells + 4}}{'1..d':>5}{'at d':>6}{'n':>5}"
    return [head, *(f"d{rate.depth} {bar(rate.cumulative, cells, glyphs)} {_figures(rate)}" for rate in rates)]


FIGURES = 16
"""Cells that the numbers behind a depth's bar take."""


def _figures(rate: DepthRate) -> str:
    return f"{share(rate.cumulative):>5}{share(rate.conditional):>6}{rate.drafted:>5d}"


def share(value: float | None) -> str:
    """A share in three characters: .91, 1.0, or n/a."""
    if value is None:
        return "n/a"
    text = f"{value:.2f}"
    return "1.0" if text == "1.00" else text[1:]


def columns(values: Sequence[float], top: float, width: int, glyphs: Glyphs) -> str:
    """One row of columns, newest right, on an axis from 0 to `top`; a value of 0 is a blank."""
    levels = glyphs.levels
    shown = values[-width:] if width else ()
    marks = [" " if value <= 0 else levels[min(len(levels) - 1, int(value / top * len(levels)))] for value in shown]
    return "".join(marks).rjust(width)
