"""All that is known of one request, as a page."""

from mtplx_tui.charts.numbers import count, percent, rate, seconds
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line
from mtplx_tui.screens.help import section
from mtplx_tui.state import RequestRow


def detail(row: RequestRow, glyphs: Glyphs) -> list[Line]:
    """Figures of a request."""
    cached = f"{count(row.cached)} of {count(row.prompt_tokens)} tokens"
    return section(
        one_line(row.source, glyphs),
        [
            ("id", one_line(row.id, glyphs)),
            ("state", f"{row.phase} {row.ended}".strip()),
            ("prompt", f"{row.prompt_tokens} tokens, {row.read} read"),
            ("from cache", cached + (f" ({row.miss})" if row.miss else "")),
            ("answer", f"{row.out} tokens at {rate(row.tok_s)} a second"),
            ("steps", f"{_number(row.tokens_per_step)} tokens a step, {percent(row.acceptance)} of the drafts held"),
            ("depth", str(row.depth)),
            ("TTFT", seconds(row.ttft)),
            ("age", seconds(row.age)),
            ("context", f"{row.context} tokens"),
        ],
    )


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
