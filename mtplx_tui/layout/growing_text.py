"""Plain text that only ever grows, wrapped at the cost of its last line."""

from mtplx_tui.layout.spans import Line, wrap


class GrowingText:
    """Text of one role is appended; wrapped lines come out."""

    def __init__(self, text: str, role: str) -> None:
        self.source = text
        self._role = role
        self._width = 0
        self._lines: list[Line] = []
        self._laid = 0  # characters of `source` that `_lines` holds: whole lines only

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
        return [*self._lines, *wrap([(rest, self._role)], width, keep_indent=True)] if rest else list(self._lines)
