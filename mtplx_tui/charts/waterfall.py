"""The verify waterfall: one line a step, its shape readable without colour."""

from rich.cells import cell_len, set_cell_size

from engine.events import StepEvent
from mtplx_tui.glyphs import Glyphs, one_line


def shape(drafted: int, accepted: int, depth: int, glyphs: Glyphs) -> str:
    """The fate of each draft in `depth` + 1 cells.

    An unbroken run of accepted drafts from depth 1, then one refusal or, where all were accepted, the bonus token.
    What was drafted and never judged is dotted; what was not drafted is blank.
    """
    if accepted >= drafted:
        drawn = glyphs.accepted * drafted + glyphs.bonus
    else:
        drawn = glyphs.accepted * accepted + glyphs.refused + glyphs.unused * (drafted - accepted)
    return drawn.ljust(depth + 1)


def said(step: StepEvent, glyphs: Glyphs) -> str:
    """What a step added to the text; where a draft was refused, `[was→is]` with the target's own token."""
    if step.refused is None or not step.tokens:
        return _squeezed("".join(step.tokens), glyphs)
    *drafts, own = step.tokens
    was, now = _squeezed(step.refused, glyphs), _squeezed(own, glyphs)
    kept = _squeezed("".join(drafts), glyphs)
    return f"{kept}{' ' if kept else ''}[{was}{glyphs.arrow}{now}]"


def _squeezed(text: str, glyphs: Glyphs) -> str:
    """One line without runs of spaces; a text of spaces alone stays in sight as one."""
    return " ".join(one_line(text, glyphs).split()) or text[:1]


def header(depth: int) -> str:
    """The line above the rows."""
    depths = "".join(str(d) for d in range(1, depth + 1))
    return f"{'step':<5} {depths}+  {'out':<3}{'ms':>7} text"


def row(step: StepEvent, depth: int, width: int, glyphs: Glyphs) -> str:
    """One step, exactly `width` cells wide."""
    ms = step.seconds * 1000
    figures = f"{step.emitted:<3d}{ms:7.1f}" if ms < 1000 else f"{step.emitted:<3d}{ms:7.0f}"
    fate = shape(step.drafted, step.accepted, depth, glyphs)
    return fit(f"{step.step:<5d} {fate}  {figures} {said(step, glyphs)}", width, glyphs)


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """The text in exactly `width` cells, cut with an ellipsis where it is longer."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    mark = glyphs.ellipsis if width >= len(glyphs.ellipsis) else ""
    return set_cell_size(text, width - len(mark)) + mark
