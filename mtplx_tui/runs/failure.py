"""Why a job failed, in as many lines as there are for it."""

from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line, cells, fit, wrap


def failure_lines(error: str, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """At most `rows` lines; an ellipsis ends the last one where there were more."""
    lines = wrap([("failed: ", "error strong"), (one_line(error, glyphs), "error")], width)
    if len(lines) <= rows:
        return lines
    last = fit(lines[rows - 1], width - cells(glyphs.ellipsis), "")
    return [*lines[: rows - 1], (*last, (glyphs.ellipsis, "error"))]
