"""The side panel's lines, from a snapshot: the verify waterfall above, the engine below."""

from dataclasses import dataclass
from functools import lru_cache

from engine.events import StepEvent
from engine.handle import ModelInfo
from mtplx_tui.charts.bars import FIGURES, columns, depth_bars, meter
from mtplx_tui.charts.numbers import count, nice_top, percent, rate, seconds
from mtplx_tui.charts.waterfall import fit as fit_text
from mtplx_tui.charts.waterfall import header, row
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, Span, fit, merge, wrap
from mtplx_tui.state import RequestRow, Snapshot

ENGINE_HEIGHT = 14
REQUEST_ROWS = 3
SERIES_BINS = 60


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the panel shows that is not the engine's. `saved` and `problem` are about the record of the chat."""

    model: ModelInfo | None
    server: str
    saved: str
    problem: str | None


def panel_lines(snapshot: Snapshot, around: Surroundings, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The whole panel: two boxes of `width` columns, `height` rows together."""
    watched = snapshot.watched
    whose = ""
    if watched is not None and snapshot.steps:
        whose = f"{one_line(watched.source, glyphs)} {one_line(watched.id[:5], glyphs)}"
    room = max(width - 4, 0)
    above = max(height - ENGINE_HEIGHT, 0)
    return [
        *framed(verify_lines(snapshot, room, above - 2, glyphs), width, above, glyphs, "verify, newest first", whose),
        *framed(engine_lines(snapshot, around, room, glyphs), width, ENGINE_HEIGHT, glyphs, "engine"),
    ]


def verify_lines(snapshot: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Waterfall, legend and acceptance, in at most `height` lines; what does not fit is left out from the legend on."""
    if not snapshot.steps:
        return [
            *wrap(
                [("Each step of the answer appears here: what was drafted, and how much of it held.", "muted")], width
            )
        ]
    depth = max(step.drafted for step in snapshot.steps)
    figures = _acceptance(snapshot, width, glyphs)
    legend = _legend(depth, glyphs, width) if height >= 12 + len(figures) else []
    below = [*([(), *legend] if legend else []), *([(), *figures] if height >= 8 + len(figures) else [])]
    shown = snapshot.steps[: max(height - 1 - len(below), 1)]
    lines: list[Line] = [((fit_text(header(depth), width, glyphs), "muted"),)]
    lines += [_step_line(step, depth, width, glyphs) for step in shown]
    lines += [()] * (height - len(lines) - len(below))
    return [*lines, *below]


@lru_cache(maxsize=256)
def _step_line(step: StepEvent, depth: int, width: int, glyphs: Glyphs) -> Line:
    """Colour is added to the shapes; it says nothing that they do not say."""
    text = row(step, depth, width, glyphs)
    start, end = 6, 6 + depth + 1
    roles = {glyphs.accepted: "accept", glyphs.refused: "refuse", glyphs.bonus: "bonus"}
    fate: list[Span] = [(mark, roles.get(mark, "faint")) for mark in text[start:end]]
    numbers = text[end : end + 13]
    return merge([(text[:start], "muted"), *fate, (numbers[:5], ""), (numbers[5:], "muted"), (text[end + 13 :], "")])


def _legend(depth: int, glyphs: Glyphs, width: int) -> list[Line]:
    if not depth:
        return wrap([(f"{glyphs.bonus} ", "bonus"), ("the model's own token, nothing drafted", "muted")], width)
    spans: list[Span] = []
    for mark, role, word in ((glyphs.accepted, "accept", "held"), (glyphs.refused, "refuse", "refused"),
                             (glyphs.unused, "faint", "unjudged"), (glyphs.bonus, "bonus", "bonus")):  # fmt: skip
        spans += [(mark, role), (f" {word}  ", "muted")]
    return [fit(merge([*spans[:-1], (spans[-1][0].rstrip(), "muted")]), width, glyphs.ellipsis)]


def _acceptance(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Line]:
    watched = snapshot.watched
    if not snapshot.depths or watched is None or watched.tokens_per_step is None:
        return []
    head, *bars = depth_bars(snapshot.depths, width, glyphs)
    total = ((f"{watched.tokens_per_step:.2f}", "strong"), (" tokens a step", "muted"))
    return [((head, "muted"),), *(_bar_line(line) for line in bars), total]


def _bar_line(line: str) -> Line:
    return ((line[:3], "muted"), (line[3:-FIGURES], "accept"), (line[-FIGURES:], ""))


def engine_lines(snapshot: Snapshot, around: Surroundings, width: int, glyphs: Glyphs) -> list[Line]:
    """Rates, context, requests, and where all this runs."""
    lines = [_rate_line(snapshot, width, glyphs), _context_line(snapshot, around.model, width, glyphs),
             _prompt_line(snapshot, width, glyphs), *_request_lines(snapshot, width, glyphs), ()]  # fmt: skip
    if around.model is not None:
        model = around.model
        head = model.head or "none, decoding token by token"
        facts = f" {glyphs.dot} ".join(filter(None, [model.quantization, model.dtype, model.device]))
        lines += [fit(((name, "muted"), (one_line(text, glyphs), "")), width, glyphs.ellipsis)
                  for name, text in (("head   ", head), ("runs   ", facts))]  # fmt: skip
    if around.server:
        lines += wrap([("server ", "muted"), (one_line(around.server, glyphs), "")], width)
    if around.problem:
        lines += wrap([("not saved: ", "warn strong"), (one_line(around.problem, glyphs), "warn")], width)
    elif around.saved:
        lines += [fit(((around.saved, "muted"),), width, glyphs.ellipsis)]
    return lines


def _rate_line(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Line:
    now = snapshot.watched.tok_s if snapshot.watched else None
    top = nice_top(max([*snapshot.series, now or 0.0]))
    axis = f" 0..{count(round(top)) if top >= 10 else f'{top:g}'}"
    head: Line = (("tok/s ", "muted"), (f"{rate(now):<5}", "strong"))
    room = max(width - 11 - len(axis), 0)
    return merge([*head, (columns(snapshot.series, top, room, glyphs), "accept"), (axis, "muted")])


def _context_line(snapshot: Snapshot, model: ModelInfo | None, width: int, glyphs: Glyphs) -> Line:
    used = snapshot.watched.context if snapshot.watched else 0
    if model is None:
        return (("ctx   ", "muted"), ("n/a", ""), (" (no model yet)", "muted"))
    if not model.context:
        return (("ctx   ", "muted"), ("n/a", ""), (" (the server does not tell)", "muted"))
    share = used / model.context
    figures = f"{count(used)} / {count(model.context)}"
    room = max(width - 6 - len(figures) - 7, 4)
    return merge([("ctx   ", "muted"), (figures, ""), (f" {meter(share, room, glyphs)}", "accept"),
                  (f" {_share(share):>4}", "muted")])  # fmt: skip


def _share(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else percent(share)


def _prompt_line(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Line:
    row = snapshot.watched
    if row is None:
        return ()
    cached = f", {count(row.cached)} from cache" if row.cached else ""
    return fit((("prompt ", "muted"), (f"{count(row.prompt_tokens)} tok{cached}", ""),
                (f"  TTFT {seconds(row.ttft)}", "muted")), width, glyphs.ellipsis)  # fmt: skip


def _request_lines(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Line]:
    head: Line = (("queue ", "muted"), (f"{snapshot.running} running {glyphs.dot} {snapshot.waiting} waiting", ""))
    shown = snapshot.active[:REQUEST_ROWS]
    lines = [head, *(fit(request_line(row, glyphs), width, glyphs.ellipsis) for row in shown)]
    if len(snapshot.active) > len(shown):
        lines.append(((f"  and {len(snapshot.active) - len(shown)} more", "muted"),))
    return lines


def request_line(row: RequestRow, glyphs: Glyphs) -> Line:
    """One request: who asks, its id, and how far it is."""
    head: list[Span] = [
        (f"  {one_line(row.source, glyphs):<5.5} ", "strong"),
        (f"{one_line(row.id[:5], glyphs)} ", "muted"),
    ]
    if row.phase == "wait":
        return merge([*head, ("WAIT    ", "warn"), (f"#{row.place}", "")])
    if row.phase == "prefill":
        share = row.read / row.prompt_tokens if row.prompt_tokens else 0.0
        return merge([*head, ("PREFILL ", ""), (f"{share:>4.0%} {meter(share, 8, glyphs)}", "accept")])
    return merge([*head, ("DECODE  ", ""), (f"{count(row.out)} tok", ""), (f"  {rate(row.tok_s)}/s", "muted")])
