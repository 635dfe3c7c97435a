"""Where in a long text the view is: one column beside it."""

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.widgets.painting import ROLE_CLASSES, Painter


class ScrollMark(Widget):
    """A bar beside a view of rows; press or drag it to move. Textual's own is styled anew, row by row, at each scroll,
    which cost a fifth of a frame."""

    COMPONENT_CLASSES = ROLE_CLASSES
    ALLOW_SELECT = False

    class Moved(Message):
        """The view should start at this share of the whole."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._thumb = (0, 0)
        self._strips: tuple[Strip, Strip] | None = None

    def show(self, top: int, total: int) -> None:
        """The view starts at row `top` of `total`."""
        height = self.size.height
        thumb = (0, 0)
        if total > height > 0:
            length = max(height * height // total, 1)
            thumb = (round(top * (height - length) / (total - height)), length)
        if thumb != self._thumb:
            self._thumb = thumb
            self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips = None

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._strips is None:
            painter = Painter(self, "")
            self._strips = (
                Strip([Segment(" ", painter.base)], 1),
                Strip([Segment(self._glyphs.thumb, painter.style("rule"))], 1),
            )
        start, length = self._thumb
        blank, thumb = self._strips
        return [thumb if start <= y < start + length else blank for y in crop.line_range]

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._move(event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._move(event.y)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()

    def _move(self, y: int) -> None:
        room = self.size.height - self._thumb[1]
        if room > 0 and self._thumb[1]:
            self.post_message(self.Moved(min(max((y - self._thumb[1] / 2) / room, 0.0), 1.0)))
