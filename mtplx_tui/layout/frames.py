"""A box of lines, with words in its edges."""

from collections.abc import Sequence

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, Span, cells, fit, merge, width_of


def framed(lines: Sequence[Line], width: int, height: int, glyphs: Glyphs, title: str, note: str = "") -> list[Line]:
    """`height` lines: a border with `title` in its top edge at the left and `note` in its bottom edge at the right.

    Lines that do not fit are left out, words in the edges that do not are cut with an ellipsis; missing lines are
    blank.
    """
    top_left, top_right, bottom_left, bottom_right, across, side = glyphs.box
    room = max(width - 4, 0)
    edge: Span = (side, "frame")
    body: list[Line] = []
    for line in [*lines, *[()] * height][: max(height - 2, 0)]:
        line = fit(line, room, glyphs.ellipsis)
        body.append(merge([edge, (" ", ""), *line, (" " * (room - width_of(line) + 1), ""), edge]))
    title, note = ("".join(part for part, _ in fit(((text, ""),), max(width - 6, 0), glyphs.ellipsis))
                   for text in (title, note))  # fmt: skip
    top = _edge(top_left, title, "", top_right, width, across)
    return [top, *body, _edge(bottom_left, "", note, bottom_right, width, across)]


def _edge(left: str, title: str, note: str, right: str, width: int, across: str) -> Line:
    title, note = (f" {text} " if text else "" for text in (title, note))
    rest = max(width - 4 - cells(title) - cells(note), 0)
    return merge([(left + across, "frame"), (title, "muted"), (across * rest, "frame"), (note, "muted"),
                  (across + right, "frame")])  # fmt: skip
