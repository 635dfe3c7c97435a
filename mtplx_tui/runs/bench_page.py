"""The bench room's page: kept results at the left, the chosen one at the right, a run that goes on below."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mtplx_tui.charts.bars import bar
from mtplx_tui.charts.numbers import nice_top, rate, seconds
from mtplx_tui.glyphs import Glyphs, clean, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, Span, fit, merge, spread
from mtplx_tui.runs.document import document_lines
from mtplx_tui.runs.failure import failure_lines
from mtplx_tui.runs.history import Change, Kept, compare
from mtplx_tui.runs.job import Job

KINDS = ("speed", "step", "context", "load", "suite")
LIST, RUN = 32, 6
"""Width of the list of results, and height of the box of a run."""
NAME = 16
"""Cells of a contender's name beside its bar."""
MARKS = {"faster": ("^", "bonus"), "slower": ("v", "refuse"), "same": ("~", "muted")}


@dataclass(frozen=True, slots=True)
class BenchView:
    """What is chosen. `kind` indexes KINDS, `chosen` the kept results; `base` is what others are compared with."""

    kept: tuple[Kept, ...]
    kind: int = 0
    chosen: int = 0
    base: Kept | None = None
    scroll: int = 0

    @property
    def shown(self) -> Kept | None:
        return self.kept[self.chosen] if self.kept else None

    def with_results(self, kept: Sequence[Kept]) -> "BenchView":
        return replace(self, kept=tuple(kept), chosen=0, scroll=0)

    def to_kind(self, by: int) -> "BenchView":
        return replace(self, kind=(self.kind + by) % len(KINDS))

    def choosing(self, by: int) -> "BenchView":
        return replace(self, chosen=min(max(self.chosen + by, 0), max(len(self.kept) - 1, 0)), scroll=0)

    def with_base(self) -> "BenchView":
        return replace(self, base=None if self.base == self.shown else self.shown)

    def scrolled(self, by: int) -> "BenchView":
        return replace(self, scroll=max(self.scroll + by, 0))


def bench_page(view: BenchView, job: Job | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines of `width` cells."""
    above = height - RUN
    left = framed(_list(view, LIST - 4, above - 2, glyphs), LIST, above, glyphs, "kept results", "b base")
    room = width - LIST
    result = _result(view, room - 4, glyphs)
    scroll = min(view.scroll, max(len(result) - (above - 2), 0))
    note = "PgUp/PgDn" if len(result) > above - 2 else ""
    title = "result" if view.base is None or view.base == view.shown else "result against the base"
    right = framed(result[scroll:], room, above, glyphs, title, note)
    run = framed(_run(view, job, width - 4, RUN - 2, glyphs), width, RUN, glyphs, "run", "Left/Right kind, s starts")
    return [*((*one, *other) for one, other in zip(left, right, strict=True)), *run]


def _list(view: BenchView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    first = max(view.chosen - height + 1, 0)
    lines: list[Line] = []
    for place, kept in enumerate(view.kept[first : first + height], first):
        mark: Span = ("> ", "accent strong") if place == view.chosen else ("  ", "")
        base = "*" if kept == view.base else " "
        text = f"{kept.date[5:16].replace('T', ' ')}{base}{kept.kind} {one_line(kept.model, glyphs)}"
        lines.append(fit((mark, (text, "")), width, glyphs.ellipsis))
    return lines or [(("Nothing was measured yet.", "muted"),)]


def _result(view: BenchView, width: int, glyphs: Glyphs) -> list[Line]:
    shown = view.shown
    if shown is None:
        return [(("Choose a kind with Left and Right, then s.", "muted"),)]
    if view.base is not None and view.base != shown:
        return _comparison(compare(shown, view.base), shown, view.base, width, glyphs)
    return [*_chart(shown, width, glyphs), *document_lines(clean(shown.document, glyphs), width, glyphs)]


def _chart(kept: Kept, width: int, glyphs: Glyphs) -> list[Line]:
    """Decode speed of each contender as bars from 0, for results that have them."""
    rows = [row for row in kept.result.get("rows", []) if "decode_tok_s" in row]
    if not rows:
        return []
    top = nice_top(max(row["decode_tok_s"]["median"] for row in rows))
    lines: list[Line] = [((f"decode tok/s, bars from 0 to {top:g}", "muted"),)]
    for row in rows:
        name = f"{row['engine']} depth {row['depth']}" if row["mode"] == "mtp" else f"{row['engine']} plain"
        median = row["decode_tok_s"]["median"]
        drawn = bar(median / top, max(width - NAME - 8, 4), glyphs)
        named = spread(((name, ""),), (), NAME + 1, glyphs.ellipsis)
        lines.append(merge([*named, (drawn, "accept"), (f" {rate(median):>6}", "strong")]))
    return [*lines, ()]


def _comparison(changes: Sequence[Change], now: Kept, base: Kept, width: int, glyphs: Glyphs) -> list[Line]:
    head = f"{now.kind} of {now.date[:16]} against {base.kind} of {base.date[:16]} (*)"
    lines: list[Line] = [fit(((head, "muted"),), width, glyphs.ellipsis), ()]
    if not changes:
        return [*lines, (("They have no figure in common.", "warn"),)]
    room = max(width - 31, 8)
    lines.append(((f"{'tok/s':<{room}}{'base':>9}{'now':>9}{'change':>11}", "muted"),))
    for change in changes:
        mark, role = MARKS[change.verdict]
        figures = f"{change.before:>9.1f}{change.now:>9.1f}{change.share:>+9.1%} "
        named = spread(((one_line(change.name, glyphs), ""),), (), room, glyphs.ellipsis)
        lines.append(merge([*named, (figures, ""), (mark, role)]))
    return [*lines, (), (("^ faster than both spread   v slower   ~ the middle halves overlap", "muted"),)]


def _run(view: BenchView, job: Job | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    chosen = KINDS[view.kind]
    kinds = merge([(f"[{kind}] ", "accent strong") if kind == chosen else (f" {kind}  ", "muted") for kind in KINDS])
    lines: list[Line] = [kinds]
    if job is None:
        lines.append((("Runs in a process of its own; use the machine for nothing else meanwhile.", "muted"),))
    elif job.state == "failed":
        lines += failure_lines(job.error, width, height - 1, glyphs)
    else:
        name = " ".join(job.arguments[:2])
        lines.append((((f"{name}: {job.state}, {seconds(job.seconds)}"), "strong"),))
        lines += [((one_line(line, glyphs), "muted"),) for line in list(job.lines)[-(height - 2) :]]
    return [fit(line, width, glyphs.ellipsis) for line in lines]
