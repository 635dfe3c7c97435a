"""What the keys do and what the figures mean."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.keys import CHAT_KEYS
from mtplx_tui.layout.spans import Line, wrap
from mtplx_tui.widgets.lines import Lines

NAME_WIDTH = 11
TEXT_WIDTH = 62
"""With the names and the frame as wide as the narrowest terminal allows."""


def figures_help(glyphs: Glyphs) -> list[tuple[str, str]]:
    """Each figure on the chat screen, with what it means and over what it is taken."""
    return [
        ("tok/s", "tokens of this answer a second, over the last 2 s; when it is done, over all after the first"),
        ("/step", "tokens that a verify step gave, mean over this answer: accepted drafts and one of the model's own"),
        ("acc", "drafts accepted, of those that were judged; drafts behind a refused one are not judged"),
        ("ctx", "tokens in this chat's cache, of those the model can hold"),
        ("TTFT", "time to first token: from Enter to the first token of the answer"),
        (f"{glyphs.accepted} {glyphs.refused} {glyphs.unused} {glyphs.bonus}",
         "one verify step: accepted, first refused (the model's own token took its place), not judged, bonus token"),
        (f"[was{glyphs.arrow}is]", "the refused draft and the token that took its place"),
        ("d1, d2", "how often drafts held up to that depth (1..d), and at it, given that those before held (at d)"),
    ]  # fmt: skip


class HelpScreen(ModalScreen[None]):
    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "close", show=False)]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        keys = [(key.shown, key.help) for key in CHAT_KEYS]
        page = Lines(self._glyphs, id="page")
        lines = [*_section("Keys", keys), (), *_section("Figures", figures_help(self._glyphs))]
        page.show(lines)
        page.styles.height = len(lines)
        box = VerticalScroll(page, id="box")
        box.border_title = "help"
        box.border_subtitle = "Esc closes"
        yield box


def _section(title: str, rows: list[tuple[str, str]]) -> list[Line]:
    lines: list[Line] = [((title, "heading"),)]
    for name, text in rows:
        first, *rest = wrap([(text, "")], TEXT_WIDTH)
        lines += [((f"{name:<{NAME_WIDTH}}", "strong"), *first), *(((" " * NAME_WIDTH, ""), *line) for line in rest)]
    return lines
