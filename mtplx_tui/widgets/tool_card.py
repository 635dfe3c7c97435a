"""A tool call in the transcript: what is called with what, how far that is, and its result. No Textual here."""

from typing import TYPE_CHECKING, Literal

from mtplx_tui.charts.numbers import size
from mtplx_tui.glyphs import Glyphs, clean, one_line
from mtplx_tui.layout.spans import Line, Span, fit, merge, wrap
from mtplx_tui.tools.calls import CallState, ToolCall

if TYPE_CHECKING:
    from mtplx_tui.conversation import Said

Word = Literal["once", "always", "deny"]
"""What the user can say of a call."""

MARGIN = "  "
TEXT_WIDTH = 100
FOLDED_LINES = 8
"""Lines of the arguments that a folded card draws; while they wait for a word, all are drawn."""
UNFOLDED_LINES = 400

_STATES: dict[CallState, tuple[str, str]] = {
    "coming": ("is being written", "muted"),
    "waiting": ("waits for your word", "warn strong"),
    "allowed": ("runs", "accent"),
    "denied": ("denied", "refuse strong"),
    "failed": ("failed", "error strong"),
    "done": ("done", "accept strong"),
    "not run": ("not run", "muted"),
}


class ToolCard:
    """One call.

    Attributes:
        said: the message of the conversation that its result is; None until there is one.
        unfold: whether the whole of arguments and result is drawn.
        note: why it asks, where that is worth a word.
    """

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.said: Said | None = None
        self.unfold = False
        self.note = ""

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        room = min(max(width - 2 * len(MARGIN), 10), TEXT_WIDTH)
        call = self.call
        word, role = _STATES[call.state]
        mark = glyphs.unfolded if self.unfold else glyphs.folded
        head: Line = (
            (f"{mark} tool ", "muted"), (one_line(call.name, glyphs), "strong"), ("  ", ""), (word, role),
        )  # fmt: skip
        edge: Span = (f"{glyphs.box[5]} ", "frame")
        whole = self.unfold or call.state == "waiting"
        body = _text(call.arguments, "code", room - 2, UNFOLDED_LINES if whole else FOLDED_LINES, glyphs)
        if call.state == "waiting":
            body += self._keys(room - 2)
        elif call.decided:
            body += self._result(room - 2, glyphs)
        lines = [fit(head, room, glyphs.ellipsis), *((edge, *line) for line in body)]
        return [*(((MARGIN, ""), *line) for line in lines), ()]

    def _keys(self, room: int) -> list[Line]:
        spans: list[Span] = [(self.note + "  " if self.note else "", "warn")]
        for key, what in (("a", "allow once"), ("A", "always in this chat"), ("D", "deny")):
            spans += [(key, "accent strong"), (f" {what}   ", "muted")]
        spans.append(("(Esc leads here)", "faint"))
        return wrap(spans, room)

    def _result(self, room: int, glyphs: Glyphs) -> list[Line]:
        text = self.call.result
        if self.unfold:
            return [(("result", "muted"),), *_text(text, "", room, UNFOLDED_LINES, glyphs)]
        first = one_line(" ".join(text[:400].split()), glyphs)
        extent = size(len(text.encode("utf-8", "replace"))) if len(text) > room - 10 else ""
        facts = f"  {extent}, t unfolds" if extent else ""
        shown = fit(((f"{glyphs.arrow} ", "muted"), (first, "")), room - len(facts), glyphs.ellipsis)
        return [merge([*shown, (facts, "faint")])]


def _text(text: str, role: str, room: int, most: int, glyphs: Glyphs) -> list[Line]:
    """The text as it is, wrapped; lines beyond the most are counted."""
    shown = text[: most * max(room, 1) + 1]
    lines = wrap([(clean(shown, glyphs), role)], room, keep_indent=True)
    hidden = len(lines) > most or len(shown) < len(text)
    if not hidden:
        return lines
    whole = size(len(text.encode("utf-8", "replace")))
    return [*lines[:most], ((f"{glyphs.ellipsis} ({whole} in all; t unfolds)", "muted"),)]
