"""The dashboard's boxes, each a pure function of the view, its size and the glyphs."""

from statistics import median
from typing import TYPE_CHECKING

from mtplx_tui.charts.bars import bar, meter
from mtplx_tui.charts.columns import column_chart
from mtplx_tui.charts.numbers import count, percent, rate, seconds, size
from mtplx_tui.charts.strip import NAMES, drafted, strip
from mtplx_tui.charts.waterfall import said
from mtplx_tui.dashboard.breakeven import advice, break_even, step_seconds
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, fit, merge, wrap
from mtplx_tui.state import RequestRow

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
    whose = f"{one_line(watched.source, glyphs)} {one_line(watched.id[:8], glyphs)}" if watched else "no request yet"
    title = f"verify waterfall, one column a step, newest right {glyphs.dot} {whose}"
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
             (" refused, the model's own token instead   blank: not judged   out: tokens a step", "muted"))  # fmt: skip
    return fit(merge(spans), room, glyphs.ellipsis)


def acceptance(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Bars from 0 by depth, a mark at the break-even share, tokens a step and a sentence."""
    rates = view.snapshot.depths
    title = (
        f"accepted {'at d, given 1..d-1' if view.conditional else 'up to d'} {glyphs.dot} {view.snapshot.window} steps"
    )
    room = width - 4
    if not rates:
        return framed([(("No draft was judged yet.", "muted"),)], width, height, glyphs, title)
    needed = break_even(rates, step_seconds(view.steps))
    cells = max(room - 16, 4)
    lines: list[Line] = []
    shown = rates[: max(height - 2, 1)]
    for found in shown:
        value = found.conditional if view.conditional else found.cumulative
        drawn = bar(value or 0.0, cells, glyphs)
        if found.depth in needed and not view.conditional:
            drawn = _marked(drawn, needed[found.depth], glyphs)
        number = "n/a" if value is None else f"{value:.2f}"
        n = found.judged if view.conditional else found.drafted
        lines.append(((f"d{found.depth} ", "muted"), (drawn, "accept"), (f" {number:>4}", ""), (f" {n:>6}", "muted")))
    watched = view.snapshot.watched
    if watched is not None and watched.tokens_per_step is not None:
        lines += [(), ((f"{watched.tokens_per_step:.2f}", "strong"), (" tokens a step", "muted"))]
    lines += wrap([(advice(rates, needed), "muted")], room)
    more = f"+{len(rates) - len(shown)} deeper {glyphs.dot} " if len(shown) < len(rates) else ""
    return framed(lines, width, height, glyphs, title, f"{more}c at d / up to d")


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


def memory(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Context, prefix cache, memory of the process and of the machine."""
    room, machine, model = width - 4, view.machine, view.model
    cells = max(room - 31, 4)
    watched = view.snapshot.watched
    lines: list[Line] = []
    if model is not None and model.context:
        used = watched.context if watched else 0
        lines.append(_meter("context", used / model.context, f"{count(used)}/{count(model.context)}", cells, glyphs))
    if model is not None and model.weight_bytes:
        lines.append((("weights  ", "muted"), (size(model.weight_bytes), "")))
    read = sum(row.prompt_tokens for row in view.rows)
    cached = sum(row.cached for row in view.rows)
    hit = f"{cached / read:.0%} of {count(read)} prompt tokens" if read else "n/a (no prompt yet)"
    lines.append((("cached   ", "muted"), (hit, "")))
    if view.elsewhere:
        lines.append((("memory   ", "muted"), ("n/a (it is on another machine)", "muted")))
        return framed([fit(line, room, glyphs.ellipsis) for line in lines], width, height, glyphs, "cache and memory")
    lines.append(_meter("process", machine.process / machine.total, size(machine.process), cells, glyphs))
    taken = machine.total - machine.available
    lines.append(_meter("machine", taken / machine.total, f"{size(taken)}/{size(machine.total)}", cells, glyphs))
    lines.append((("swap     ", "muted"), (size(machine.swap), ""), ("  pressure ", "muted"), (machine.pressure, "")))
    return framed([fit(line, room, glyphs.ellipsis) for line in lines], width, height, glyphs, "cache and memory")


def _meter(name: str, share: float, figures: str, cells: int, glyphs: Glyphs) -> Line:
    return ((f"{name:<9}", "muted"), (f"{figures:<16} ", ""), (meter(share, cells, glyphs), "accept"),
            (f" {percent(share)}", "muted"))  # fmt: skip


REQUESTS = ("id     ", "from       ", "state   ", "prompt", "cached", "  out", " tok/s", "  age")
"""The columns' heads, each as wide as its column."""


def requests(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Every request that is here, and those that ended last."""
    room = width - 4
    head = "  " + " ".join(REQUESTS)
    shown = max(height - 3, 1)
    first = min(max(view.chosen - shown + 1, 0), max(len(view.rows) - shown, 0))
    lines: list[Line] = [((head, "muted"),)]
    for place, row in enumerate(view.rows[first : first + shown], first):
        lines.append(fit(_request(row, place == view.chosen, glyphs), room, glyphs.ellipsis))
    if not view.rows:
        lines.append((("  No request has come yet.", "muted"),))
    waiting = f"{view.snapshot.running} running {glyphs.dot} {view.snapshot.waiting} waiting"
    note = f"Enter detail {glyphs.dot} x cancel"
    return framed(lines, width, height, glyphs, f"requests {glyphs.dot} {waiting}", note)


def _request(row: RequestRow, chosen: bool, glyphs: Glyphs) -> Line:
    name, source = one_line(row.id, glyphs)[-7:], one_line(row.source, glyphs)[:11]
    figures = f" {row.prompt_tokens:>6} {row.cached:>6} {row.out:>5} {rate(row.tok_s):>6} {seconds(row.age):>5}"
    state = {"wait": "warn", "prefill": "accent", "decode": "accent"}.get(row.phase, "muted")
    mark = ("> ", "accent strong") if chosen else ("  ", "")
    return merge([mark, (f"{name:<7} {source:<11} ", ""), (f"{row.phase.upper():<8}", state), (figures, ""),
                  (f"  {_left(row, glyphs)}", "muted")])  # fmt: skip


def _left(row: RequestRow, glyphs: Glyphs) -> str:
    if row.phase == "wait":
        return f"#{row.place}"
    if row.phase == "prefill":
        share = row.read / row.prompt_tokens if row.prompt_tokens else 0.0
        return f"{share:.0%} {meter(share, 3, glyphs)}"
    return row.ended


def server(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Where the server is, how it does, and the end of the log."""
    room = width - 4
    firsts = sorted(row.ttft for row in view.rows if row.ttft is not None)
    ttft = f"median {seconds(median(firsts))}  most {seconds(firsts[-1])}" if firsts else "n/a"
    lines: list[Line] = [*wrap([(one_line(view.server, glyphs), "")], room), (("TTFT ", "muted"), (ttft, ""))]
    if view.figures is not None:
        lines += wrap([(_figures_text(view.figures), "")], room)
    lines.append(())
    left = max(height - 2 - len(lines), 0)
    lines += [fit(((one_line(text, glyphs), "muted"),), room, glyphs.ellipsis) for text in view.log[-left:] if left]
    return framed(lines, width, height, glyphs, "server and log", "l full log")


def _figures_text(figures: "ServerFigures") -> str:
    """What another's metrics tell, in a line or two."""
    told = [f"{number} {name}" for number, name in ((figures.running, "running"), (figures.waiting, "waiting"))
            if number is not None]  # fmt: skip
    if figures.accepted is not None:
        told.append(f"{percent(figures.accepted)} of drafts held")
        depths = " ".join(f"d{depth} {share:.2f}" for depth, share in enumerate(figures.by_depth, 1))
        told.append(f"{depths}, {figures.per_round:.2f} tokens a step since its start".removeprefix(", "))
    return "; ".join(told) or "its metrics tell nothing of requests or drafts"
