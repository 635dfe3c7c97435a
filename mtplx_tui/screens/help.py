"""What the keys do and what the figures mean."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.keys import Key
from mtplx_tui.layout.spans import Line, wrap
from mtplx_tui.widgets.lines import Lines

NAME_WIDTH = 11
TEXT_WIDTH = 62
"""With the names and the frame as wide as the narrowest terminal allows."""


class HelpScreen(ModalScreen[None]):
    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "close", show=False)]

    def __init__(self, glyphs: Glyphs, keys: Sequence[Key], figures: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._keys = keys
        self._figures = figures

    def compose(self) -> ComposeResult:
        keys = [(key.shown, key.help) for key in self._keys]
        page = Lines(self._glyphs, id="page")
        lines = _section("Keys", keys)
        if self._figures:
            lines += [(), *_section("Figures", self._figures)]
        page.show(lines)
        page.styles.height = len(lines)
        box = VerticalScroll(page, id="box")
        box.border_title = "help"
        box.border_subtitle = "Esc closes"
        yield box


def _section(title: str, rows: Sequence[tuple[str, str]]) -> list[Line]:
    lines: list[Line] = [((title, "heading"),)]
    for name, text in rows:
        first, *rest = wrap([(text, "")], TEXT_WIDTH)
        lines += [((f"{name:<{NAME_WIDTH}}", "strong"), *first), *(((" " * NAME_WIDTH, ""), *line) for line in rest)]
    return lines
