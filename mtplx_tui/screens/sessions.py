"""The list of saved chats."""

from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from mtplx_tui.charts.waterfall import fit
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.store import SessionRow


class SessionsScreen(ModalScreen[SessionRow | None]):
    """Dismissed with the chosen chat, or with None."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+o", "dismiss(None)", "close", show=False)]

    def __init__(self, rows: list[SessionRow], glyphs: Glyphs) -> None:
        super().__init__()
        self._rows = rows
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        box = Vertical(id="box")
        box.border_title = "saved chats"
        box.border_subtitle = "Enter opens, Esc closes"
        with box:
            if self._rows:
                yield OptionList(*(Option(Content(self._label(row))) for row in self._rows), id="list", markup=False)
            else:
                yield Static("No chat is saved yet. The first message of one saves it.", markup=False)

    def _label(self, row: SessionRow) -> str:
        when = f"{datetime.fromtimestamp(row.updated):%Y-%m-%d %H:%M}"
        title = fit(one_line(row.title, self._glyphs) or "(no message yet)", 38, self._glyphs)
        return f"{when}  {title}  {row.messages:>3}  {one_line(row.model, self._glyphs)}"

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._rows[event.option_index])
