"""Plain text that only ever grows, wrapped at the cost of its last line."""

from mtplx_tui.layout.spans import Line, plain, wrap


class GrowingLine:
    """One line of text, without newlines, that gets longer: only its last wrapped line is wrapped again."""

    def __init__(self, role: str, keep_indent: bool = False) -> None:
        self._role = role
        self._keep_indent = keep_indent
        self._text = ""
        self._width = 0
        self._full: list[Line] = []
        self._start = 0  # where in the text the last wrapped line begins

    def lay_out(self, text: str, width: int) -> list[Line]:
        """Wrapped lines of the text; cheap where it continues the text of the last call."""
        if width != self._width or not text.startswith(self._text):
            self._width, self._full, self._start = width, [], 0
        self._text = text
        *full, last = wrap([(text[self._start :], self._role)], width, self._keep_indent and not self._start)
        for line in full:
            shown = plain(line)
            self._start = text.index(shown, self._start) + len(shown)  # an indent as wide as the line is not shown
            while text[self._start] == " ":  # dropped at the break
                self._start += 1
        self._full += full
        return [*self._full, last]


class GrowingText:
    """Text of one role is appended; wrapped lines come out."""

    def __init__(self, text: str, role: str) -> None:
        self.source = text
        self._role = role
        self._width = 0
        self._lines: list[Line] = []
        self._laid = 0  # characters of `source` that `_lines` holds: whole lines only
        self._last = GrowingLine(role, keep_indent=True)

    def append(self, text: str) -> None:
        self.source += text

    def lay_out(self, width: int) -> list[Line]:
        """All lines at this width."""
        if width != self._width:
            self._width, self._lines, self._laid = width, [], 0
        end = self.source.rfind("\n") + 1
        if end > self._laid:
            self._lines += wrap([(self.source[self._laid : end], self._role)], width, keep_indent=True)
            self._laid = end
        rest = self.source[end:]
        return [*self._lines, *self._last.lay_out(rest, width)] if rest else list(self._lines)
