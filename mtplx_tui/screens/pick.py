"""Choose one of many texts, narrowed by what is typed."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import fit, plain
from mtplx_tui.screens.ask import LineInput, box_of

SHOWN = 200
ROW = 72


class PickScreen(ModalScreen[str | None]):
    """Dismissed with the chosen text, or with None. `texts` are in the order in which they are listed."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("up", "move(-1)", "before", show=False, priority=True),
        Binding("down,ctrl+r", "move(1)", "after", show=False, priority=True),
    ]

    def __init__(self, title: str, texts: Sequence[str], glyphs: Glyphs) -> None:
        super().__init__()
        self._title = title
        self._texts = list(dict.fromkeys(texts))
        self._glyphs = glyphs
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        with box_of(self._title, "type to narrow, Enter takes it, Esc", self.app):
            yield LineInput(id="line", compact=True)
            yield OptionList(id="list", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._fill("")

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, typed: str) -> None:
        words = typed.casefold().split()
        self._found = [text for text in self._texts if all(word in text.casefold() for word in words)][:SHOWN]
        options = self.query_one(OptionList)
        options.clear_options()
        for text in self._found:
            row = plain(fit(((one_line(text, self._glyphs), ""),), ROW, self._glyphs.ellipsis))
            options.add_option(Option(Content(row)))
        if not self._found:
            options.add_option(Option("Nothing here has that in it.", disabled=True))
        options.highlighted = 0 if self._found else None

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            options.highlighted = min(max(options.highlighted + by, 0), len(self._found) - 1)

    @on(Input.Submitted)
    def _take(self) -> None:
        place = self.query_one(OptionList).highlighted
        self.dismiss(None if place is None else self._found[place])

    @on(OptionList.OptionSelected)
    def _click(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])
