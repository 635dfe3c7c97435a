"""One line asked for above a room: a title, a text to find, a yes or no."""

from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from mtplx_tui.glyphs import Glyphs, clean, glyph_set, mask, one_line


class LineInput(Input):
    """One line to type in. What is pasted can not drive the terminal: Textual's own draws escape sequences as such."""

    def validate_value(self, value: str) -> str:
        return mask(value.replace("\t", " "), glyphs_of(self.app))  # as long as it was: the cursor counts on it


def glyphs_of(app: App[object]) -> Glyphs:
    """The shapes that the app draws with."""
    return glyph_set("ascii" if app.has_class("-ascii") else "unicode")


def box_of(title: str, keys: str, app: App[object]) -> Vertical:
    """The frame of what opens above a room. `title` may hold text that others wrote."""
    box = Vertical(id="box")
    box.border_title = Content(one_line(title, glyphs_of(app)))
    box.border_subtitle = Content(keys)
    return box


LINE_KEYS = "Enter takes it, Esc does not"


class AskScreen(ModalScreen[str | None]):
    """Dismissed with what was typed, or with None."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        with box_of(self._question, LINE_KEYS, self.app):
            yield LineInput(self._text, id="line", compact=True)

    @on(Input.Submitted)
    def _given(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class SureScreen(ModalScreen[bool]):
    """Dismissed with True at y, with False at anything else."""

    CSS_PATH = "modal.tcss"

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with box_of("", "y does it, any other key does not", self.app):
            yield Static(clean(self._question, glyphs_of(self.app)), markup=False)

    def on_mount(self) -> None:
        self.app.clear_notifications()  # what was said in a list below must not hide the question

    def key_y(self) -> None:
        self.dismiss(True)

    def on_key(self, event: object) -> None:
        if getattr(event, "key", "") != "y":
            self.dismiss(False)
