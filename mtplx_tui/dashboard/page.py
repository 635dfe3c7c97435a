"""The dashboard's boxes put together, for each class of size."""

from collections.abc import Sequence

from mtplx_tui.dashboard import boxes, load
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line

WIDE, SIDE = 110, 44
"""From how many columns there are two of boxes, and how wide the right one is."""


def page(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines of `width` cells."""
    depth = max((step.drafted for step in view.steps[:width]), default=4)
    if width >= WIDE:
        return _wide(view, width, height, depth, glyphs)
    return _narrow(view, width, height, depth, glyphs)


def _wide(view: View, width: int, height: int, depth: int, glyphs: Glyphs) -> list[Line]:
    left = width - SIDE
    top = min(max(depth + 8, 12), height // 2)
    middle = min(9, (height - top) // 2)
    bottom = height - top - middle
    return [
        *_beside(boxes.waterfall(view, left, top, glyphs), boxes.acceptance(view, SIDE, top, glyphs)),
        *_beside(boxes.speed(view, left, middle, glyphs), load.memory(view, SIDE, middle, glyphs)),
        *_beside(load.requests(view, left, bottom, glyphs), load.server(view, SIDE, bottom, glyphs)),
    ]


def _narrow(view: View, width: int, height: int, depth: int, glyphs: Glyphs) -> list[Line]:
    top = min(depth + 6, height - 12)
    middle = min(max(depth + 5, 8), (height - top) // 2)
    half = width // 2
    return [
        *boxes.waterfall(view, width, top, glyphs),
        *_beside(boxes.acceptance(view, half, middle, glyphs), load.now(view, width - half, middle, glyphs)),
        *load.requests(view, width, height - top - middle, glyphs, one_line(view.server, glyphs)),
    ]


def _beside(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    return [(*one, *other) for one, other in zip(left, right, strict=True)]
