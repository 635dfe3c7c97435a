"""A room that is one page of lines between the tabs and the keys."""

from textual.app import ComposeResult
from textual.events import Resize

from mtplx_tui.screens.room import EDGE_ROWS, Room
from mtplx_tui.services import Services
from mtplx_tui.widgets.lines import Lines


class PageRoom(Room):
    """Its page is as high as the terminal leaves; `draw` fills it, and is called whenever its size may have changed."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._page = Lines(services.glyphs, id="page")

    def compose_body(self) -> ComposeResult:
        yield self._page

    def draw(self) -> None:
        """Draw the page as things are."""
        raise NotImplementedError

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self._page.styles.height = max(event.size.height - EDGE_ROWS, 0)
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.draw)
