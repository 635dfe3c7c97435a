"""A widget that shows lines of spans, framed or not, and repaints only those that changed."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, Span, cells, fit, merge, plain, width_of
from mtplx_tui.widgets.painting import ROLE_CLASSES, Painter


@dataclass(frozen=True, slots=True)
class Frame:
    """A border with words in its top edge at the left and in its bottom edge at the right."""

    title: str
    note: str = ""


class Lines(Widget):
    """A fixed area of lines. Give it new lines as often as you like: equal ones cost a comparison.

    It draws its own frame: a border of the style sheet's would put every row through Textual's styling again.
    """

    COMPONENT_CLASSES = ROLE_CLASSES
    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, frame: Frame | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._frame = frame
        self._content: list[Line] = []
        self._rows: list[Line] = []
        self._strips: list[Strip | None] = []
        self._painter: Painter | None = None

    @property
    def text(self) -> str:
        """What it was given, as plain text."""
        return "\n".join(plain(line) for line in self._content)

    @property
    def room(self) -> tuple[int, int]:
        """Columns and rows for content; none while it is not shown."""
        width, height = self.size
        return (width, height) if self._frame is None else (max(width - 4, 0), max(height - 2, 0))

    def show(self, lines: Sequence[Line], frame: Frame | None = None) -> None:
        """Show these lines from the top; those that do not fit are not drawn. `frame` replaces its frame's words."""
        self._content = list(lines)
        self._frame = frame or self._frame
        self._draw()

    def on_resize(self, _: Resize) -> None:
        self._strips = []
        self._draw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._painter = None
        self._strips = []

    def _draw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        rows = self._framed(self._frame, width, height) if self._frame else self._content[:height]
        rows += [()] * (height - len(rows))
        if len(self._strips) != height:
            self._rows, self._strips = rows, [None] * height
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(self._rows, rows, strict=True)):
            if old != new:
                self._strips[y] = None
                self.refresh(Region(0, y, width, 1))
        self._rows = rows

    def _framed(self, frame: Frame, width: int, height: int) -> list[Line]:
        top_left, top_right, bottom_left, bottom_right, across, edge = self._glyphs.box
        room = max(width - 4, 0)
        side: Span = (edge, "frame")
        rows: list[Line] = [self._edge(top_left, frame.title, "", top_right, width, across)]
        for line in [*self._content, *[()] * height][: height - 2]:
            line = fit(line, room, self._glyphs.ellipsis)
            rows.append(merge([side, (" ", ""), *line, (" " * (room - width_of(line) + 1), ""), side]))
        return [*rows, self._edge(bottom_left, "", frame.note, bottom_right, width, across)]

    def _edge(self, left: str, title: str, note: str, right: str, width: int, across: str) -> Line:
        title, note = (f" {text} " if text else "" for text in (title, note))
        rest = max(width - 4 - cells(title) - cells(note), 0)
        return merge([(left + across, "frame"), (title, "muted"), (across * rest, "frame"), (note, "muted"),
                      (across + right, "frame")])  # fmt: skip

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows from strips that are kept."""
        if self._painter is None:
            self._painter = Painter(self, self._glyphs.ellipsis)
        width = self.size.width
        if len(self._strips) != self.size.height:
            self._draw()
        strips = [self._strip(y, width) for y in crop.line_range]
        left, right = crop.column_span
        return strips if (left, right) == (0, width) else [strip.crop_extend(left, right, None) for strip in strips]

    def _strip(self, y: int, width: int) -> Strip:
        assert self._painter is not None
        strip = self._strips[y]
        if strip is None:
            strip = self._strips[y] = self._painter.strip(self._rows[y], width)
        return strip
