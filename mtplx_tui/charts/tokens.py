"""Steps token by token: where each came from, in shapes that need no colour."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.events import TokenLogprob
from mtplx_tui.charts.bars import bar
from mtplx_tui.charts.waterfall import shape
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line, Span, fit, merge, width_of
from mtplx_tui.trace import TracedStep

Origin = Literal["draft", "correction", "bonus", "own"]

SOURCES = {"mtp": "m", "copy": "c", "grammar": "g", "none": " "}
_DRAFTERS = {
    "mtp": "the model's own MTP head",
    "copy": "a copy of what the context says",
    "grammar": "the grammar, which left no choice",
    "none": "nobody",
}
_ROLES: dict[Origin, str] = {"draft": "accept", "correction": "refuse", "bonus": "bonus", "own": ""}
BAR_CELLS = 20


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a step.

    Attributes:
        depth: of a draft, which of the step's drafts it was, from 1.
        id, logprob: None where they are not known; both are so for a token that ended the answer.
    """

    text: str
    origin: Origin
    depth: int
    id: int | None
    logprob: TokenLogprob | None


def tokens(traced: TracedStep) -> list[Token]:
    """The tokens that a step gave, in order."""
    step = traced.step
    last: Origin = "own" if not step.drafted else "bonus" if step.refused is None else "correction"
    return [
        Token(
            text,
            "draft" if place < step.accepted else last,
            place + 1 if place < step.accepted else 0,
            traced.ids[place] if place < len(traced.ids) else None,
            traced.logprobs[place] if place < len(traced.logprobs) else None,
        )
        for place, text in enumerate(step.tokens)
    ]


def legend(glyphs: Glyphs) -> Line:
    """What the marks of a row say."""
    return merge([
        (f" {glyphs.accepted}", "accept"), (" held ", "muted"),
        (f"[was{glyphs.arrow}is]", "refuse"), (" refused, the model's own ", "muted"),
        (f"{glyphs.bonus}text", "bonus"), (" bonus ", "muted"),
        ("m", "strong"), (" head ", "muted"), ("c", "strong"), (" copy ", "muted"),
        ("g", "strong"), (" grammar", "muted"),
    ])  # fmt: skip


def row(traced: TracedStep, depth: int, width: int, glyphs: Glyphs, chosen: int | None = None) -> Line:
    """One step: its number, who drafted, the fate of each draft in `depth` + 1 cells, and its tokens with marks.

    The token at `chosen` stands out; what is before it gives way where the row is too narrow for both.
    """
    step = traced.step
    fates = {glyphs.accepted: "accept", glyphs.refused: "refuse", glyphs.bonus: "bonus"}
    fate = shape(step.drafted, step.accepted, depth, glyphs)
    head: list[Span] = [
        (f"{step.step:>6} ", "strong" if chosen is not None else "muted"),
        (f"{SOURCES[step.source]} ", "muted"),
        *((mark, fates.get(mark, "muted")) for mark in fate),
        (" ", ""),
    ]
    drawn = [_drawn(token, traced, glyphs, place == chosen) for place, token in enumerate(tokens(traced))]
    room = width - width_of(tuple(head))
    first = 0
    while chosen is not None and first < chosen and _width(drawn[first : chosen + 1]) > room - 2:
        first += 1
    cut: list[Span] = [(glyphs.ellipsis, "muted")] if first else []
    edge: Span = (glyphs.box[5], "faint")
    body = [span for place, spans in enumerate(drawn[first:]) for span in ([edge] if place else []) + spans]
    return fit(merge([*head, *cut, *body]), width, glyphs.ellipsis)


def _width(drawn: Sequence[Sequence[Span]]) -> int:
    return sum(width_of(tuple(spans)) + 1 for spans in drawn)


def _drawn(token: Token, traced: TracedStep, glyphs: Glyphs, chosen: bool) -> list[Span]:
    role = _ROLES[token.origin]
    text = one_line(token.text, glyphs)
    if token.origin == "correction":
        text = f"[{one_line(traced.step.refused or '', glyphs)}{glyphs.arrow}{text}]"
    elif token.origin == "bonus":
        text = f"{glyphs.bonus}{text}"
    return [(text, f"{role} cursor".strip() if chosen else role)]


def detail(traced: TracedStep, place: int, number: str, width: int, glyphs: Glyphs) -> list[Line]:
    """All that is known of one token: what it is, where it came from, its step, and what else the model thought of."""
    found = tokens(traced)
    if place >= len(found):
        return [(("This step gave no token that was taken.", "muted"),)]
    token, step = found[place], traced.step
    name = (f"token {number}  ", "muted"), (_quoted(token.text, glyphs), "strong")
    ident = f"  id {token.id}" if token.id is not None else "  it ended the answer, and is no part of it"
    shared = f", shared by {step.rows} requests" if step.rows > 1 else ""
    figures = (
        f"step {step.step}: {step.drafted} drafted, {step.accepted} accepted, {len(found)} out, "
        f"{step.seconds * 1000:.1f} ms{shared}"
    )
    lines: list[Line] = [
        (*name, (ident, "muted")),
        (("from  ", "muted"), (_origin(token, traced, glyphs), _ROLES[token.origin])),
        ((figures, "muted"),),
        *_likely(token.logprob, glyphs),
    ]
    return [fit(line, width, glyphs.ellipsis) for line in lines]


def _origin(token: Token, traced: TracedStep, glyphs: Glyphs) -> str:
    step = traced.step
    match token.origin:
        case "draft":
            return f"draft {token.depth} of {step.drafted}, which held; drafted by {_DRAFTERS[step.source]}"
        case "correction":
            was = _quoted(step.refused or "", glyphs)
            return f"the model itself, in place of draft {step.accepted + 1} of {step.drafted}, {was}"
        case "bonus":
            return f"the model itself, as a bonus: all {step.drafted} drafts held"
        case "own":
            return "the model itself; this step drafted nothing"


def _likely(known: TokenLogprob | None, glyphs: Glyphs) -> list[Line]:
    if known is None:
        return [(("probability n/a: it was not asked for with this answer", "muted"),)]
    own = (("probability  ", "muted"), (_share(known.logprob), "strong"),
           ("  of the model itself, before temperature and filters", "muted"))  # fmt: skip
    others = [
        (
            (f"{_share(logprob)} ", ""), (bar(math.exp(logprob), BAR_CELLS, glyphs), "accept"), (" ", ""),
            (_quoted(raw.decode("utf-8", "replace"), glyphs), "strong" if token == known.id else ""),
        )
        for token, raw, logprob in known.top
    ]  # fmt: skip
    return [own, *others]


def _share(logprob: float) -> str:
    return f"{math.exp(logprob):.3f}"


def _quoted(text: str, glyphs: Glyphs) -> str:
    return f'"{one_line(text, glyphs)}"'
