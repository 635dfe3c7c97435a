"""All that is known of one request, as a page: its figures, and what the model got and gave, token by token."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.cells import chop_cells

from mtplx_tui.charts.numbers import count, percent, rate, seconds
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line, Span, cells, wrap
from mtplx_tui.screens.help import section
from mtplx_tui.screens.page import TEXT_WIDTH
from mtplx_tui.state import RequestRow

if TYPE_CHECKING:
    from mtplx_tui.sent import Part, Sent, Token

TOKENS_SHOWN = 16_384
"""Most tokens of a prompt that are shown, from its end; nobody reads more, and they take time to draw."""
CACHED, READ = "accept", "accent"


def detail(row: RequestRow, glyphs: Glyphs) -> list[Line]:
    """Figures of a request."""
    return section(
        one_line(row.source, glyphs),
        [
            ("id", one_line(row.id, glyphs)),
            ("state", f"{row.phase} {row.ended}".strip()),
            ("prompt", f"{row.prompt_tokens} tokens, {row.read} read"),
            ("from cache", f"{count(row.cached)} of {count(row.prompt_tokens)} tokens"),
            *([("why", one_line(row.miss, glyphs))] if row.miss else []),
            ("answer", f"{row.out} tokens at {rate(row.tok_s)} a second"),
            ("steps", f"{_number(row.tokens_per_step)} tokens a step, {percent(row.acceptance)} of the drafts held"),
            ("depth", str(row.depth)),
            ("TTFT", seconds(row.ttft)),
            ("prefill", f"{rate(row.prefill_tok_s)} tokens a second"),
            ("age", seconds(row.age)),
            ("context", f"{row.context} tokens"),
        ],
    )


def sent_lines(sent: "Sent", glyphs: Glyphs) -> list[Line]:
    """What was sent to the model and what it answered; a line and a colour tell apart what the cache had of it."""
    lines: list[Line] = []
    if sent.asked is not None:
        lines += section("Asked", [("drawn", _drawn(sent.asked)), ("seed", str(sent.asked.get("seed", "n/a")))])
        lines.append(())
    if sent.error:
        lines += [*section("Error", [("why", one_line(sent.error, glyphs))]), ()]
    lines.append((("Sent to the model", "heading"), (f"  tokens divided by {glyphs.box[5]}", "muted")))
    lines += _prompt(sent.prompt, glyphs)
    lines += [(), (("Answer", "heading"),), *_tokens(sent.answer, glyphs)]
    return lines


def unknown(why: str, glyphs: Glyphs) -> list[Line]:
    """Why nothing is told of what was sent."""
    return [(("Sent to the model", "heading"),), *wrap([(one_line(why, glyphs), "muted")], TEXT_WIDTH)]


def _drawn(asked: dict[str, Any]) -> str:
    """How the answer was drawn: the settings that change something."""
    sampling = asked.get("sampling")
    if not isinstance(sampling, dict):
        return "n/a"
    plain = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
             "frequency_penalty": 0.0}  # fmt: skip
    told = [f"{name} {value:g}" for name, value in sampling.items()
            if isinstance(value, int | float) and plain.get(name) != value]  # fmt: skip
    biased = len(sampling.get("logit_bias") or ())
    return ", ".join([*told, f"{biased} tokens biased"] if biased else told)


def _prompt(part: "Part", glyphs: Glyphs) -> list[Line]:
    if part.tokens is None:
        return _tokens(part, glyphs)
    cached = [token for token in part.tokens if token.cached]
    read = [token for token in part.tokens if not token.cached]
    lines: list[Line] = []
    if part.start:
        lines.append(((f"the first {part.start:,} of {part.total:,} tokens are not shown", "muted"),))
    for word, tokens, role in (("from the cache", cached, CACHED), ("read anew", read, READ)):
        if tokens:
            rule = glyphs.rule * 3
            lines.append(((f"{rule} {len(tokens):,} {word} {rule}", f"{role} strong"),))
            lines += token_lines(tokens, role, glyphs)
    return lines


def _tokens(part: "Part", glyphs: Glyphs) -> list[Line]:
    if part.tokens is None:
        return wrap([(part.why or "n/a", "muted")], TEXT_WIDTH)
    return token_lines(part.tokens, "", glyphs) or [(("nothing", "muted"),)]


def token_lines(tokens: "Iterable[Token]", role: str, glyphs: Glyphs) -> list[Line]:
    """Each token and a bar after it; a line ends where the text has its end of line, or there is no more room."""
    lines: list[Line] = []
    spans: list[Span] = []
    room = TEXT_WIDTH
    for token in tokens:
        shown = f"#{token.id}" if token.text is None else one_line(token.text, glyphs)
        for piece in chop_cells(shown, TEXT_WIDTH - 1) or [""]:
            if cells(piece) + 1 > room:
                lines.append(tuple(spans))
                spans, room = [], TEXT_WIDTH
            spans.append((piece, f"{role} em".strip() if token.special else role))
            room -= cells(piece)
        spans.append((glyphs.box[5], "faint"))
        room -= 1
        if token.text is not None and token.text.endswith("\n"):
            lines.append(tuple(spans))
            spans, room = [], TEXT_WIDTH
    return [*lines, tuple(spans)] if spans else lines


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
