"""What the transcript is made of: plain objects that give their lines at a width. No Textual here."""

from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from mtplx_tui.charts.bars import meter
from mtplx_tui.charts.numbers import count, seconds, size
from mtplx_tui.glyphs import Glyphs, clean, one_line
from mtplx_tui.layout.growing import GrowingMarkdown
from mtplx_tui.layout.growing_text import GrowingText
from mtplx_tui.layout.spans import Line, Span, fit, merge, width_of, wrap

if TYPE_CHECKING:
    from mtplx_tui.conversation import Said

MARGIN = "  "
TEXT_WIDTH = 100
"""Lines of an answer are no longer than this: the eye loses the next one behind longer ones."""
USER_LINES = 20
"""Lines of a user's message that are drawn; the rest is counted. All of it is stored and sent."""
USER_CHARACTERS = 4000


class Block(Protocol):
    """A part of the transcript that ends with one empty line."""

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]: ...


class UserMessage:
    """What the user said.

    Attributes:
        said: the message of the conversation that it shows.
    """

    def __init__(self, text: str, at: datetime | None, said: "Said | None" = None) -> None:
        self.text = text
        self.said = said
        self._at = at

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        bar: Span = (f"{glyphs.bar} ", "you")
        shown, hidden = self._shown()
        head: list[Span] = [("you", "you strong")]
        if self._at is not None:
            head.append((f"  {self._at:%H:%M}", "muted"))
        head += _version(self.said)
        body = wrap([(clean(shown, glyphs), "")], width - width_of((bar,)), keep_indent=True)
        lines = [(bar, *head), *((bar, *line) for line in body)]
        if hidden:
            whole = size(len(self.text.encode("utf-8", "replace")))
            note = f"{glyphs.ellipsis} {hidden} more lines ({whole} in all, sent whole)"
            lines += [(bar, *line) for line in wrap([(note, "muted")], width - 2)]
        return [*lines, ()]

    def _shown(self) -> tuple[str, int]:
        total = self.text.count("\n") + 1
        lines = self.text.split("\n", USER_LINES)[:USER_LINES]
        shown = "\n".join(lines)
        if total <= USER_LINES and len(shown) <= USER_CHARACTERS:
            return shown, 0
        shown = shown[:USER_CHARACTERS]
        return shown, max(total - shown.count("\n") - 1, 1)


class Welcome:
    """What an empty chat says."""

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        texts: tuple[list[Span], ...] = (
            [("Ask something, for example ", "muted"), ("What is 47 + 85?", "strong")],
            [("Each answer is drafted ahead and verified step by step: the panel shows which drafts held. ", "muted"),
             ("F1", "strong"), (" explains every figure.", "muted")],
        )  # fmt: skip
        return [(), *_inset([line for text in texts for line in wrap(text, width - 2 * len(MARGIN))]), ()]


class Notice:
    """A line of the program itself between the messages."""

    def __init__(self, text: str, kind: Literal["muted", "warn", "error"] = "muted") -> None:
        self.text = text
        self._kind = kind

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        label = {"muted": "", "warn": "note: ", "error": "error: "}[self._kind]
        spans: list[Span] = [(label, f"{self._kind} strong"), (clean(self.text, glyphs), self._kind)]
        return [*_inset(wrap(spans, width - 2 * len(MARGIN))), ()]


class Answer:
    """One answer of the model: thinking, text, and how it ended. It grows while it streams.

    Attributes:
        live: still streaming. said: the message of the conversation that it shows.
        note: how it ended, where that is worth a line.
        waiting: what is waited for before the first token, in words; `progress` is a share of it, if known.
        unfold: whether the thinking is drawn; None follows the stream: while it comes, and folded once text begins.
        thought_tokens, thought_s: size of the thinking, where known.
        calling: tool calls follow it, each on a card of its own.
    """

    def __init__(
        self, glyphs: Glyphs, reasoning: str = "", content: str = "", tool: str = "", live: bool = False
    ) -> None:
        self.live = live
        self.said: Said | None = None
        self.note: Notice | None = None
        self.waiting = ""
        self.progress: float | None = None
        self.unfold: bool | None = None
        self.thought_tokens: int | None = None
        self.thought_s: float | None = None
        self.calling = False
        self._glyphs = glyphs
        self._settled: list[Line] = []
        self._settled_inset: list[Line] = []
        self._reasoning = GrowingText("", "think")
        self._content = GrowingMarkdown()
        self._tool = GrowingText("", "code")
        for kind, text in (("reasoning", reasoning), ("text", content), ("tool", tool)):
            self.append(kind, text)
        if not live:
            self._content.finish()

    def append(self, kind: str, text: str) -> None:
        """Add what the model said on one of its channels (reasoning, text, tool)."""
        text = clean(text, self._glyphs)
        if kind == "reasoning":
            self._reasoning.append(text if self._reasoning.source else text.lstrip("\n"))
        elif kind == "tool":
            self._tool.append(text if self._tool.source else text.lstrip("\n"))
        else:
            self._content.append(text)

    def finish(self, note: Notice | None) -> None:
        self.live = False
        self.note = note
        self._content.finish()

    @property
    def thinking(self) -> bool:
        """The thinking is what now comes."""
        spoken = self._content.source.strip() or self._tool.source or self.calling
        return self.live and self.has_thinking and not spoken

    @property
    def has_thinking(self) -> bool:
        return bool(self._reasoning.source.strip())

    @property
    def unfolded(self) -> bool:
        return self.thinking if self.unfold is None else self.unfold

    @property
    def empty(self) -> bool:
        return not (self.has_thinking or self._content.source.strip() or self._tool.source)

    def lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        if self.calling and self.empty and self.note is None:
            return []  # its cards say it all
        room = min(max(width - 2 * len(MARGIN), 10), TEXT_WIDTH)
        settled, last = self._content.lay_out(room, glyphs)
        tail = list(last)
        if self._tool.source:
            tail += [*([()] if settled or last else []), (("tool call (not run)", "muted"),), *self._tool.lay_out(room)]
        if self.live and self.empty:
            tail = [self._waiting_line(room, glyphs)]
        elif self.live and not self.thinking and not self.calling:
            tail = _with_cursor(tail, room, glyphs)
        head = self._thinking_lines(room, glyphs)
        if head and (settled or tail):
            head.append(())
        lines = [*_inset(head), *self._inset_settled(settled), *_inset(tail)]
        if version := _version(self.said):
            lines = [*_inset([version]), (), *lines]
        if self.note is not None:
            lines += [*([()] if lines else []), *self.note.lines(width, glyphs)[:-1]]
        return [*lines, ()]

    def _inset_settled(self, settled: list[Line]) -> list[Line]:
        """The same line objects as last time for what was settled then, so that comparing them costs nothing."""
        if settled is not self._settled:
            self._settled, self._settled_inset = settled, []
        self._settled_inset += _inset(settled[len(self._settled_inset) :])
        return self._settled_inset

    def _thinking_lines(self, width: int, glyphs: Glyphs) -> list[Line]:
        if not self.has_thinking:
            return []
        figures = [f"{count(self.thought_tokens)} tok"] if self.thought_tokens else []
        figures += [seconds(self.thought_s)] if self.thought_s is not None else []
        facts = "".join(f"  {figure}" for figure in figures)
        if not self.unfolded:
            word = "thinking" if self.thinking else "thought"
            first = one_line(" ".join(self._reasoning.source[:400].split()), glyphs)
            return [
                fit((_head(glyphs.folded, word), (facts, "muted"), (f'  "{first}"', "faint")), width, glyphs.ellipsis)
            ]
        word = "thinking" if self.thinking else "thought"
        head: Line = merge([_head(glyphs.unfolded, word), (facts, "muted"), ("  (^T folds)", "faint")])
        edge: Span = (f"{glyphs.quote} ", "quote")
        body = self._reasoning.lay_out(width - 2)
        while body and not body[-1]:
            body.pop()
        if self.thinking:
            body = _with_cursor(body, width - 2, glyphs)
        return [fit(head, width, glyphs.ellipsis), *((edge, *line) for line in body)]

    def _waiting_line(self, width: int, glyphs: Glyphs) -> Line:
        spans: list[Span] = [(self.waiting, "muted")]
        if self.progress is not None:
            spans.append((f"  {meter(self.progress, 16, glyphs)} {self.progress:.0%}", "muted"))
        return fit(merge(spans), width, glyphs.ellipsis)


def _version(said: "Said | None") -> Line:
    """Which of several versions this is."""
    if said is None or said.versions == 1:
        return ()
    return ((f"  version {said.version} of {said.versions}", "muted"), ("  [ and ] change it", "faint"))


def _head(mark: str, word: str) -> Span:
    return (f"{mark} {word}", "think strong")


def _inset(lines: list[Line]) -> list[Line]:
    return [((MARGIN, ""), *line) if line else () for line in lines]


def _with_cursor(lines: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    cursor: Span = (glyphs.cursor, "accent")
    last = lines[-1] if lines else ()
    framed = bool(last) and "frame" in last[-1][1]
    if not lines or framed or width_of(last) >= width:
        return [*lines, (cursor,)]
    return [*lines[:-1], (*last, cursor)]
