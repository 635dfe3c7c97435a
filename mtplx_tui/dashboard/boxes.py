"""The boxes of steps, drafts and speed, each a pure function of the view, its size and the glyphs."""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from mtplx_tui.charts.bars import DepthRate, bar
from mtplx_tui.charts.columns import column_chart
from mtplx_tui.charts.numbers import percent, rate
from mtplx_tui.charts.strip import NAMES, drafted, strip
from mtplx_tui.charts.waterfall import said
from mtplx_tui.dashboard.breakeven import advice, break_even, step_seconds
from mtplx_tui.dashboard.load import short_id
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, fit, merge, wrap

if TYPE_CHECKING:
    from mtplx_tui.remote.figures import ServerFigures


AROUND_DEPTHS = 3
"""Rows of the waterfall that are there at every depth: out, ms, and the newest step in words."""


def waterfall(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The steps of the watched request, one column each, and in words the newest or the chosen one."""
    room = width - 4
    note = f"{len(view.steps)} steps {glyphs.dot} space {'goes on' if view.paused else 'pauses'}"
    if view.paused:
        note += f" {glyphs.dot} Left/Right"
    watched = view.snapshot.watched
    whose = f"{short_id(watched.id, glyphs)} {one_line(watched.source, glyphs)}" if watched else "no request yet"
    title = f"verify waterfall, a column a step, newest right {glyphs.dot} {whose}"
    if not view.steps:
        text = "Each step of an answer appears here: how many tokens were drafted, and how many of them held."
        return framed(wrap([(text, "muted")], room), width, height, glyphs, title)
    columns = room - NAMES
    place = view.place or 0
    first = max(place - columns + 1, 0)
    seen = view.steps[first:]
    deepest = drafted(seen, room)
    depth = min(deepest, max(height - 2 - AROUND_DEPTHS, 1))
    if depth < deepest:
        note = f"+{deepest - depth} deeper {glyphs.dot} {note}"
    lines = strip(seen, room, glyphs, None if view.place is None else place - first, depth)
    lines += [*([()] if height - 2 > len(lines) + 1 else []), _step_line(view, place, room, glyphs)]
    if height - 2 > len(lines) + 1:
        lines += [(), _legend(room, glyphs)]
    return framed(lines, width, height, glyphs, title, note)


def _step_line(view: View, place: int, room: int, glyphs: Glyphs) -> Line:
    step = view.steps[place]
    head = f"step {step.step}" if view.paused else "now"
    figures = f"{step.accepted} of {step.drafted} {step.source}, {step.seconds * 1000:.1f} ms"
    return fit(((f"{head} ", "muted"), (f"{figures}  ", ""), (said(step, glyphs), "strong")), room, glyphs.ellipsis)


def _legend(room: int, glyphs: Glyphs) -> Line:
    spans = ((glyphs.accepted, "accept"), (" held   ", "muted"), (glyphs.refused, "refuse"),
             (" refused   blank: not judged   out: tokens a step", "muted"))  # fmt: skip
    return fit(merge(spans), room, glyphs.ellipsis)


def acceptance(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Bars from 0 by depth, a mark at the break-even share, tokens a step and a sentence.

    Of a server whose steps are not seen here, what its metrics tell of its drafts.
    """
    rates = view.snapshot.depths
    if not rates and view.figures is not None and view.figures.by_depth:
        return _of_metrics(view.figures, width, height, glyphs)
    title = f"accepted {'at d, given 1..d-1' if view.conditional else 'up to d'}"
    note = "c at d / up to d"
    steps = f" {glyphs.dot} {view.snapshot.window} steps"
    room, inside = width - 4, max(height - 2, 1)
    if not rates:
        return framed([(("No draft was judged yet.", "muted"),)], width, height, glyphs, title + steps)
    needed = break_even(rates, step_seconds(view.steps))
    tokens = view.snapshot.watched and view.snapshot.watched.tokens_per_step
    word = wrap([(advice(rates, needed), "muted")], room)
    lines = [_depth_bar(found, view.conditional, needed, room, glyphs) for found in rates]
    below = [*([(), ((f"{tokens:.2f}", "strong"), (" tokens a step", "muted"))] if tokens else []), *word]
    if len(lines) + len(below) <= inside:
        return framed([*lines, *below], width, height, glyphs, title + steps, note)
    shown = max(inside - len(word), 1)  # the steps are counted behind each bar, too
    if tokens:
        title = f"accepted {'at d' if view.conditional else 'up to d'} {glyphs.dot} {tokens:.2f} a step"
    if shown < len(lines):
        note = f"+{len(lines) - shown} deeper {glyphs.dot} {note}"
    return framed([*lines[:shown], *word], width, height, glyphs, title, note)


BAR_FIGURES = 16
"""Cells that a depth's name and numbers take beside its bar."""


def _depth_bar(rate: DepthRate, conditional: bool, needed: Mapping[int, float], room: int, glyphs: Glyphs) -> Line:
    value = rate.conditional if conditional else rate.cumulative
    drawn = bar(value or 0.0, max(room - BAR_FIGURES, 4), glyphs)
    if rate.depth in needed and not conditional:
        drawn = _marked(drawn, needed[rate.depth], glyphs)
    number = "n/a" if value is None else f"{value:.2f}"
    n = rate.judged if conditional else rate.drafted
    return ((f"d{rate.depth} ", "muted"), (drawn, "accept"), (f" {number:>4}", ""), (f" {n:>6}", "muted"))


def _of_metrics(figures: "ServerFigures", width: int, height: int, glyphs: Glyphs) -> list[Line]:
    cells = max(width - 4 - BAR_FIGURES, 4)
    lines: list[Line] = [
        ((f"d{depth} ", "muted"), (bar(share, cells, glyphs), "accept"), (f" {share:>4.2f}", ""))
        for depth, share in enumerate(figures.by_depth, 1)
    ]
    held: Line = ((f"{figures.per_round:.2f}", "strong"), (" tokens a step, ", "muted"),
                  (percent(figures.accepted), "strong"), (" held", "muted"))  # fmt: skip
    shown = max(height - 3, 1)
    note = f"+{len(lines) - shown} deeper" if shown < len(lines) else ""
    title = f"accepted up to d {glyphs.dot} since its start"
    return framed([*lines[:shown], held], width, height, glyphs, title, note)


def _marked(drawn: str, share: float, glyphs: Glyphs) -> str:
    """A bar with a line at the share where it breaks even."""
    at = min(round(share * len(drawn)), len(drawn) - 1)
    return f"{drawn[:at]}{glyphs.box[5]}{drawn[at + 1 :]}"


def speed(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Tokens a second of all requests together, from 0."""
    series = view.snapshot.series
    ran = [value for value in series if value > 0]
    note = f"now {rate(ran[-1])}  median {rate(median(ran))}  least {rate(min(ran))}" if ran else ""
    return framed(
        column_chart(series, width - 4, height - 2, glyphs), width, height, glyphs, "tok/s, all requests", note
    )
