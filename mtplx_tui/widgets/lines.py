"""A widget that shows lines of spans and repaints only those that changed."""

from collections.abc import Sequence

from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, plain
from mtplx_tui.widgets.painting import Painter


class Lines(Widget):
    """A fixed area of lines. Give it new lines as often as you like: equal ones cost a comparison.

    It has no border or padding of the style sheet's: those would put every row through Textual's styling again.
    """

    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []
        self._painter: Painter | None = None

    @property
    def text(self) -> str:
        """What it shows, as plain text."""
        return "\n".join(plain(line) for line in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines from the top; those that do not fit are not drawn."""
        height = self.size.height
        rows = [*lines[:height], *[()] * (height - len(lines))]
        if len(self._strips) != height or not self._strips:
            self._lines, self._strips = list(lines), [None] * height
            self.refresh()
            return
        old = [*self._lines[:height], *[()] * (height - len(self._lines))]
        changed = [y for y, (before, after) in enumerate(zip(old, rows, strict=True)) if before != after]
        # A waterfall moves its rows down unchanged: their strips move with them.
        kept = {line: strip for line, strip in zip(self._lines, self._strips, strict=False) if strip is not None}
        for y in changed:
            self._strips[y] = kept.get(rows[y])
        self._lines = rows
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def on_resize(self, _: Resize) -> None:
        self._strips = []
        self.show(self._lines)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._painter is not None and not self._painter.holds():
            self._painter = None
            self._strips = []
            self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows from strips that are kept."""
        if self._painter is None:
            self._painter = Painter(self, self._glyphs.ellipsis)
        if len(self._strips) != self.size.height:
            self._strips = [None] * self.size.height
        width = self.size.width
        strips = [self._strip(y, width) for y in crop.line_range]
        left, right = crop.column_span
        return strips if (left, right) == (0, width) else [strip.crop_extend(left, right, None) for strip in strips]

    def _strip(self, y: int, width: int) -> Strip:
        assert self._painter is not None
        strip = self._strips[y]
        if strip is None or strip.cell_length != width:
            line = self._lines[y] if y < len(self._lines) else ()
            strip = self._strips[y] = self._painter.strip(line, width)
        return strip
