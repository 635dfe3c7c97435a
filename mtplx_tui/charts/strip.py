"""The verify waterfall laid on its side: one column a step, newest right, so that many steps are seen at once."""

from collections.abc import Sequence

from engine.events import StepEvent
from mtplx_tui.charts.bars import columns
from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, Span, merge

NAMES = 4
"""Cells at the left that name the rows."""


def drafted(steps: Sequence[StepEvent], width: int) -> int:
    """The deepest draft of the steps that fit in `width` cells: rows of their strip beside `out` and `ms`."""
    return max((step.drafted for step in steps[: max(width - NAMES, 0)]), default=0)


def strip(
    steps: Sequence[StepEvent], width: int, glyphs: Glyphs, marked: int | None = None, depth: int | None = None
) -> list[Line]:
    """Rows `out`, `d4` to `d1` and `ms`, each `width` cells wide.

    A column reads from below: an unbroken run of accepted drafts, then the refused one; a depth that was not judged or
    not drafted is blank. Its digit in `out` says how many tokens the step gave.

    Args:
        steps: newest first; as many as fit are drawn. marked: place of the step whose column stands out.
        depth: the deepest drafts that get a row; None draws all.
    """
    room = max(width - NAMES, 0)
    shown = list(reversed(steps[:room]))
    mark = None if marked is None or marked >= len(shown) else len(shown) - 1 - marked
    pad = room - len(shown)
    depth = drafted(steps, width) if depth is None else depth
    rows = [_row("out", [(_digit(step.emitted), "") for step in shown], pad, mark)]
    for d in range(depth, 0, -1):
        rows.append(_row(f"d{d}", [_fate(step, d, glyphs) for step in shown], pad, mark))
    slowest = max((step.seconds for step in shown), default=0.0)
    heights = columns([step.seconds for step in shown], slowest or 1.0, len(shown), glyphs)
    rows.append(_row("ms", [(level, "muted") for level in heights], pad, mark))
    return rows


def _fate(step: StepEvent, depth: int, glyphs: Glyphs) -> Span:
    if depth <= step.accepted:
        return (glyphs.accepted, "accept")
    if depth == step.accepted + 1 and depth <= step.drafted:
        return (glyphs.refused, "refuse")
    return (" ", "")


def _digit(count: int) -> str:
    return str(count) if count < 10 else "+"


def _row(name: str, cells: Sequence[Span], pad: int, mark: int | None) -> Line:
    drawn = [(text, "cursor") if place == mark else (text, role) for place, (text, role) in enumerate(cells)]
    return merge([(f"{name:<{NAMES}}", "muted"), (" " * pad, ""), *drawn])
