"""One line asked for above a room: a title, a text to find, a yes or no."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


def line_box(title: str) -> Vertical:
    """The box of a screen that asks for one line."""
    box = Vertical(id="box")
    box.border_title = title.replace("[", "\\[")
    box.border_subtitle = "Enter takes it, Esc does not"
    return box


class AskScreen(ModalScreen[str | None]):
    """Dismissed with what was typed, or with None."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        with line_box(self._question):
            yield Input(self._text, id="line", compact=True)

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
        box = Vertical(id="box")
        box.border_subtitle = "y does it, any other key does not"
        with box:
            yield Static(self._question, markup=False)

    def key_y(self) -> None:
        self.dismiss(True)

    def on_key(self, event: object) -> None:
        if getattr(event, "key", "") != "y":
            self.dismiss(False)
