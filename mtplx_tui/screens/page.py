"""A page of lines above a room: help, a log, what is known of something."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line
from mtplx_tui.widgets.lines import Lines

TEXT_WIDTH = 73
"""Cells that a line has where the terminal is as narrow as is allowed."""


class PageScreen(ModalScreen[None]):
    """Scrolls with the arrow keys and closes with Esc. `at_end` begins at the last line."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "close", show=False)]

    def __init__(self, glyphs: Glyphs, title: str, lines: Sequence[Line], *, at_end: bool = False) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._title = title
        self._lines = lines
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        page = Lines(self._glyphs, id="page")
        page.show(self._lines)
        page.styles.height = max(len(self._lines), 1)
        box = VerticalScroll(page, id="box")
        box.border_title = self._title.replace("[", "\\[")
        box.border_subtitle = "Esc closes"
        yield box

    def on_mount(self) -> None:
        if self._at_end:
            self.call_after_refresh(self.query_one("#box", VerticalScroll).scroll_end, animate=False)
