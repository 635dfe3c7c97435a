"""A line is a tuple of spans, a span is text and the role it plays; what a role looks like is the style sheet's."""

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells

Span = tuple[str, str]
"""Text without newlines or control characters, and a role: one or more names of ROLES, separated by spaces."""

Line = tuple[Span, ...]

ROLES = (
    "muted", "faint", "strong", "em", "strike", "accent", "title", "rule",
    "accept", "refuse", "bonus", "warn", "error", "you", "think",
    "heading", "bullet", "quote", "link", "code", "source", "frame",
    "keyword", "string", "number", "comment", "name", "cursor",
)  # fmt: skip
"""Every role the style sheet knows; the empty role is plain text."""

_PIECES = re.compile(r"\n| +|[^ \n]+")


def cells(text: str) -> int:
    """Cells that the text takes on screen."""
    return len(text) if text.isascii() else cell_len(text)


def width_of(line: Line) -> int:
    return sum(cells(text) for text, _ in line)


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def wrap(spans: Iterable[Span], width: int, keep_indent: bool = False) -> list[Line]:
    """Break at spaces so that no line is wider than `width` cells; words wider than that are folded.

    Newlines in the text break too. Spaces at a break are dropped; those that start a line of the text stay only
    with `keep_indent`. There is always at least one line.
    """
    return _Wrapper(max(width, 1), keep_indent).wrap(spans)


class _Wrapper:
    def __init__(self, width: int, keep_indent: bool) -> None:
        self.width = width
        self.keep_indent = keep_indent
        self.lines: list[Line] = []
        self.line: list[Span] = []
        self.used = 0
        self.fresh = True  # nothing of the text's own line has been placed yet
        self.gap: Span | None = None
        self.word: list[Span] = []
        self.word_cells = 0

    def wrap(self, spans: Iterable[Span]) -> list[Line]:
        for text, role in spans:
            for piece in _PIECES.findall(text):
                if piece == "\n":
                    self.place()
                    self.end_line()
                    self.fresh = True
                elif piece[0] == " ":
                    self.place()
                    if not self.fresh or self.keep_indent:
                        self.gap = (piece, role)
                else:
                    self.word.append((piece, role))
                    self.word_cells += cells(piece)
        self.place()
        if self.line or not self.lines:
            self.end_line()
        return self.lines

    def end_line(self) -> None:
        self.lines.append(merge(self.line))
        self.line = []
        self.used = 0
        self.gap = None

    def place(self) -> None:
        """Put the pending word on the current line, or on a new one where it does not fit."""
        if not self.word:
            return
        gap_cells = len(self.gap[0]) if self.gap else 0
        if self.used + gap_cells + self.word_cells > self.width:
            if self.line:
                self.end_line()
            elif gap_cells >= self.width:
                self.gap = None
        if self.gap:
            self.line.append(self.gap)
            self.used += gap_cells
            self.gap = None
        if self.used + self.word_cells > self.width:
            self.fold()
        else:
            self.line += self.word
            self.used += self.word_cells
        self.word = []
        self.word_cells = 0
        self.fresh = False

    def fold(self) -> None:
        for text, role in self.word:
            rest = text
            while rest:
                head = take(rest, self.width - self.used)
                if not head and self.line:
                    self.end_line()
                    continue
                head = head or rest[0]  # one character wider than the whole width is drawn all the same
                self.line.append((head, role))
                self.used += cells(head)
                rest = rest[len(head) :]


def take(text: str, room: int) -> str:
    """The longest start of the text that fits in `room` cells; it never cuts a character with its accents in two."""
    if room <= 0:
        return ""
    if text.isascii():
        return text[:room]
    return chop_cells(text[: 8 * room + 16], room)[0]


def merge(spans: Sequence[Span]) -> Line:
    """Join neighbours of the same role."""
    merged: list[Span] = []
    for text, role in spans:
        if merged and merged[-1][1] == role:
            merged[-1] = (merged[-1][0] + text, role)
        elif text:
            merged.append((text, role))
    return tuple(merged)


def fit(line: Line, width: int, ellipsis: str) -> Line:
    """The line in at most `width` cells, cut with an ellipsis where it is longer."""
    if width_of(line) <= width:
        return line
    room = width - cells(ellipsis)
    if room < 0:
        return ()
    kept: list[Span] = []
    for text, role in line:
        head = text if cells(text) <= room else take(text, room)
        kept.append((head, role))
        room -= cells(head)
        if head != text:
            break
    kept.append((ellipsis, kept[-1][1] if kept else ""))
    return merge(kept)


def spread(left: Line, right: Line, width: int, ellipsis: str) -> Line:
    """`left` and `right` at the ends of a line; where there is no room for both, the left one is cut."""
    room = width - width_of(right) - 1
    if room < 0:
        return fit(right, width, ellipsis)
    left = fit(left, room, ellipsis)
    return merge([*left, (" " * (width - width_of(left) - width_of(right)), ""), *right])
