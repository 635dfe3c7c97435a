"""A chart of columns over time, several rows high, on an axis that starts at 0 and is printed."""

from collections.abc import Sequence

from mtplx_tui.charts.numbers import count, nice_top
from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line

AXIS = 6
"""Cells that the axis takes."""


def column_chart(values: Sequence[float], width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines, newest value right. A value of 0 is a blank; the top of the axis is a round number."""
    top = nice_top(max(values, default=0.0))
    room = max(width - AXIS, 0)
    shown = list(values[-room:]) if room else []
    return [_line(shown, top, row, height, room, glyphs) for row in range(height)]


def _line(values: Sequence[float], top: float, row: int, height: int, room: int, glyphs: Glyphs) -> Line:
    above = height - 1 - row
    label = top * (height - row) / height if row == 0 or (height - row) * 2 == height else None
    if row == height - 1:
        label = 0.0
    name = "" if label is None else count(round(label)) if top >= 10 else f"{label:g}"
    cells = "".join(_cell(value / top * height - above, glyphs) for value in values)
    return ((f"{name:>{AXIS - 2}}{glyphs.box[5]} ", "muted"), (cells.rjust(room), "accept"))


def _cell(filled: float, glyphs: Glyphs) -> str:
    if filled <= 0:
        return " "
    levels = glyphs.levels
    return levels[min(len(levels) - 1, int(filled * len(levels)))]
