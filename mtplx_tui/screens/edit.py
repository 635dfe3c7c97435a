"""A value asked for above a room, which stays until it is one that can be, or Esc."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from mtplx_tui.glyphs import clean
from mtplx_tui.screens.ask import LINE_KEYS, LineInput, box_of, glyphs_of


class EditScreen(ModalScreen[bool]):
    """Dismissed with whether a value was taken.

    Args:
        allowed: what can be given, in words. take: uses what was typed; gives the reason where it can not be.
    """

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(False)", "close", show=False)]

    def __init__(self, title: str, text: str, allowed: str, take: Callable[[str], Awaitable[str | None]]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._allowed = allowed
        self._take = take

    def compose(self) -> ComposeResult:
        with box_of(self._title, LINE_KEYS, self.app):
            yield Static(self._allowed, id="allowed", markup=False)
            yield LineInput(self._text, id="line", compact=True)
            yield Static("", id="reason", markup=False)

    @on(Input.Submitted)
    @work(exclusive=True, group="take")
    async def _given(self, event: Input.Submitted) -> None:
        reason = await self._take(event.value)
        if reason is None:
            self.dismiss(True)
        else:
            self.refuse(reason)

    def refuse(self, reason: str) -> None:
        """Say why a value can not be; the words may be a server's."""
        self.query_one("#reason", Static).update(clean(reason, glyphs_of(self.app)))
