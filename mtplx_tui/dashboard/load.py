"""The boxes of memory, requests and server, each a pure function of the view, its size and the glyphs."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from mtplx_tui.charts.bars import columns, meter
from mtplx_tui.charts.numbers import count, nice_top, percent, rate, seconds, size
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, fit, merge, spread, width_of, wrap
from mtplx_tui.state import RequestRow

if TYPE_CHECKING:
    from mtplx_tui.remote.figures import ServerFigures

ELSEWHERE = "n/a (on another machine)"
ID_CELLS = 7


def short_id(request_id: str, glyphs: Glyphs) -> str:
    """The end of a request's id, in which ids differ."""
    return one_line(request_id, glyphs)[-ID_CELLS:]


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
    read, cached = _prompts(view)
    hit = f"{cached / read:.0%} of {count(read)} prompt tokens" if read else "n/a (no prompt yet)"
    lines.append((("cached   ", "muted"), (hit, "")))
    if view.elsewhere:
        lines.append((("memory   ", "muted"), (ELSEWHERE, "muted")))
        return framed([fit(line, room, glyphs.ellipsis) for line in lines], width, height, glyphs, "cache and memory")
    lines.append(_meter("process", machine.process / machine.total, size(machine.process), cells, glyphs))
    taken = machine.total - machine.available
    lines.append(_meter("machine", taken / machine.total, f"{size(taken)}/{size(machine.total)}", cells, glyphs))
    lines.append((("swap     ", "muted"), (size(machine.swap), ""), ("  pressure ", "muted"), (machine.pressure, "")))
    return framed([fit(line, room, glyphs.ellipsis) for line in lines], width, height, glyphs, "cache and memory")


def _meter(name: str, share: float, figures: str, cells: int, glyphs: Glyphs) -> Line:
    return ((f"{name:<9}", "muted"), (f"{figures:<16} ", ""), (meter(share, cells, glyphs), "accept"),
            (f" {percent(share)}", "muted"))  # fmt: skip


def now(view: View, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Speed, memory and server in four lines and two edges, for where there is no room for a box of each."""
    room, machine, model, snapshot = width - 4, view.machine, view.model, view.snapshot
    ran = [value for value in snapshot.series if value > 0]
    lines: list[Line] = [_speed(snapshot.series, room, glyphs) if ran else _fact("tok/s", "n/a (no answer yet)")]
    read, cached = _prompts(view)
    hit = f"{cached / read:.0%}" if read else "n/a"
    if model is not None and model.context:
        used = snapshot.watched.context if snapshot.watched else 0
        share = percent(used / model.context)
        lines.append(_fact("context", f"{count(used)}/{count(model.context)} {share}, cached {hit}"))
    else:
        lines.append(_fact("cached", hit))
    if view.elsewhere:
        lines.append(_fact("memory", ELSEWHERE))
    else:
        taken = f"{_gigabytes(machine.total - machine.available)}/{_gigabytes(machine.total)} GB"
        lines.append(_fact("memory", f"{taken}, ours {size(machine.process)}"))
    lines.append(_fact("TTFT", f"{_first_tokens(view)[0]}, prefill {_prefill(view)}"))
    title = (
        f"now {glyphs.dot} weights {size(model.weight_bytes)}" if model is not None and model.weight_bytes else "now"
    )
    pressure = machine.pressure.partition(" (")[0]  # a reason for n/a stands where there is room for it
    note = "" if view.elsewhere else f"swap {size(machine.swap)} {glyphs.dot} pressure {pressure}"
    return framed(lines, width, height, glyphs, title, note)


def _speed(series: Sequence[float], room: int, glyphs: Glyphs) -> Line:
    """Tokens a second now, and how they went, as columns on an axis from 0."""
    top = nice_top(max(series))
    latest = f"{rate(next(value for value in reversed(series) if value > 0)):<4} "
    axis = f" 0..{top:g}"
    head = _fact("tok/s", latest)
    drawn = columns(series, top, max(room - width_of(head) - len(axis), 0), glyphs)
    return (*head, (drawn, "accept"), (axis, "muted"))


def _fact(name: str, text: str) -> Line:
    return ((f"{name:<9}", "muted"), (text, ""))


def _gigabytes(value: int) -> str:
    scaled = value / 1e9
    return f"{scaled:.1f}" if scaled < 99.95 else f"{scaled:.0f}"


def _prompts(view: View) -> tuple[int, int]:
    """Tokens of all prompts that are listed, and how many of them came from the cache."""
    return sum(row.prompt_tokens for row in view.rows), sum(row.cached for row in view.rows)


def _first_tokens(view: View) -> tuple[str, str]:
    """Time to first token of the requests that are listed: the median, and the most."""
    firsts = sorted(row.ttft for row in view.rows if row.ttft is not None)
    return (seconds(median(firsts)), seconds(firsts[-1])) if firsts else ("n/a", "n/a")


def _prefill(view: View) -> str:
    """How fast the prompts of the requests that are listed were read."""
    rates = [row.prefill_tok_s for row in view.rows if row.prefill_tok_s is not None]
    return f"{rate(median(rates))} tok/s" if rates else "n/a"


REQUESTS = "  {:<7} {:<{source}} {:<7} {:>6} {:>6} {:>5} {:>5} {:>5}"
"""Columns of the list; `source` is as wide as there is room."""
SOURCE_CELLS, LEFT_CELLS = 9, 7
"""What the source has at least, and what is left for the end of a row at least."""


def requests(view: View, width: int, height: int, glyphs: Glyphs, where: str = "") -> list[Line]:
    """Every request that is here, and those that ended last. `where` is said beside their numbers."""
    room = width - 4
    left = max(LEFT_CELLS, *(width_of(((_left(row, glyphs), ""),)) for row in view.rows), 0)
    source = max(room - len(REQUESTS.format(*[""] * 8, source=0)) - 2 - left, SOURCE_CELLS)
    head = REQUESTS.format("id", "from", "state", "prompt", "cached", "out", "tok/s", "age", source=source)
    shown = max(height - 3, 1)
    first = min(max(view.chosen - shown + 1, 0), max(len(view.rows) - shown, 0))
    lines: list[Line] = [((head, "muted"),)]
    for place, row in enumerate(view.rows[first : first + shown], first):
        lines.append(fit(_request(row, place == view.chosen, source, glyphs), room, glyphs.ellipsis))
    if not view.rows:
        lines.append((("  No request has come yet.", "muted"),))
    running, waiting = view.load
    title = f"requests {glyphs.dot} {running} running {glyphs.dot} {waiting} waiting"
    if where:
        title += f" {glyphs.dot} {where}"
    more = len(view.rows) - shown
    note = f"{f'+{more} more {glyphs.dot} ' if more > 0 else ''}Enter detail {glyphs.dot} x cancel"
    return framed(lines, width, height, glyphs, title, note)


def _request(row: RequestRow, chosen: bool, source: int, glyphs: Glyphs) -> Line:
    name = spread(((one_line(row.source, glyphs), ""),), (), source + 1, glyphs.ellipsis)
    figures = f" {row.prompt_tokens:>6} {row.cached:>6} {row.out:>5} {rate(row.tok_s):>5} {seconds(row.age):>5}"
    state = {"wait": "warn", "prefill": "accent", "decode": "accent"}.get(row.phase, "muted")
    mark = ("> ", "accent strong") if chosen else ("  ", "")
    return merge([mark, (f"{short_id(row.id, glyphs):<{ID_CELLS}} ", ""), *name,
                  (f"{row.phase.upper():<7}", state), (figures, ""),
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
    middle, most = _first_tokens(view)
    lines: list[Line] = [
        *wrap([(one_line(view.server, glyphs), "")], room),
        (("TTFT ", "muted"), (f"median {middle}  most {most}" if middle != "n/a" else middle, "")),
        (("prefill ", "muted"), (_prefill(view), "")),
    ]
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
        told.append(f"{percent(figures.accepted)} of drafts held since its start")
    return "; ".join(told) or "its metrics tell nothing of requests or drafts"
