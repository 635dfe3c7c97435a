"""The one-line status of the chat, from a snapshot."""

from engine.handle import ModelInfo
from mtplx_tui.charts.bars import meter
from mtplx_tui.charts.numbers import count, percent, rate, seconds
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line, Span, merge, spread
from mtplx_tui.state import RequestRow, Snapshot


def status_line(snapshot: Snapshot, model: ModelInfo | None, hint: Line, width: int, glyphs: Glyphs) -> Line:
    """What the watched request does, in figures; `hint` stands at the right."""
    row = snapshot.watched
    left = () if row is None else _figures(row, model, snapshot, glyphs)
    return spread(merge([(" ", ""), *left]), merge([*hint, (" ", "")]) if hint else (), width, glyphs.ellipsis)


def _figures(row: RequestRow, model: ModelInfo | None, snapshot: Snapshot, glyphs: Glyphs) -> Line:
    spans: list[Span] = []
    if row.source != "chat":
        spans.append((f"{one_line(row.source, glyphs)} {one_line(row.id[:5], glyphs)}  ", "warn strong"))
    spans += [(rate(row.tok_s), "strong"), (" tok/s", "muted")]
    if row.tokens_per_step is not None:
        spans += [(f"  {row.tokens_per_step:.1f}", "strong"), ("/step", "muted")]
    if row.acceptance is not None:
        spans += [("  acc ", "muted"), (percent(row.acceptance), "strong")]
    if model is not None and model.context:
        spans += [("  ctx ", "muted"), (f"{count(row.context)}/{count(model.context)} ", ""),
                  (meter(row.context / model.context, 6, glyphs), "accept")]  # fmt: skip
    spans += [("  TTFT ", "muted"), (seconds(row.ttft), "")]
    others = len(snapshot.active) - (row.phase != "done")
    if others > 0:
        spans += [(f"  +{others} more", "warn")]
    return tuple(spans)
