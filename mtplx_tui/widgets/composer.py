"""Where the message is written."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from mtplx_tui.drafts import Draft, PromptHistory, chip_for, folds, unpaste
from mtplx_tui.glyphs import Glyphs, mask
from mtplx_tui.slash import completed


class Composer(TextArea):
    """A text area in which Enter sends. A long paste is folded to a chip and expanded when sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
    ]

    class Submitted(Message):
        """Enter was pressed on something to send."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    class Paged(Message):
        """The transcript should be scrolled by a page, up (-1) or down (1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, compact=True)
        self.set_reactive(TextArea.cursor_blink, False)  # a blinking cursor is a timer that never rests
        self.prompts = PromptHistory()
        self._glyphs = glyphs
        self._pastes: dict[str, str] = {}
        self._recalled: str | None = None

    @property
    def draft(self) -> Draft:
        return Draft(self.text, {chip: pasted for chip, pasted in self._pastes.items() if chip in self.text})

    def put(self, draft: Draft) -> None:
        """Replace what is written, cursor at the end."""
        self._pastes.update(draft.pastes)
        self.load_text(draft.text)
        self.move_cursor(self.document.end)

    def draft_of(self, text: str) -> Draft:
        """A draft of a whole text, folded to a chip where it is long."""
        if not folds(text):
            return Draft(text)
        chip = self._chip(text)
        return Draft(chip, {chip: text})

    def attach(self, chip: str, text: str) -> None:
        """Insert a chip that stands for a text; one of the same name for another text gets a number."""
        number, named = 1, chip
        while self._pastes.get(named, text) != text:
            number += 1
            named = f"{chip[:-1]} ({number})]"
        self._pastes[named] = text
        self.insert(f"{named} ")

    def _chip(self, text: str) -> str:
        chip = next((chip for chip, pasted in self._pastes.items() if pasted == text), None)
        if chip is None:
            chip = chip_for(text, self._pastes)
            self._pastes[chip] = text
        return chip

    def get_line(self, line_index: int) -> Text:
        """The line as drawn: a control character that was pasted is shown, never sent to the terminal."""
        return Text(mask(self.document.get_line(line_index), self._glyphs), end="", no_wrap=True)

    async def _on_key(self, event: events.Key) -> None:
        match event.key:
            case "enter":
                event.stop()
                event.prevent_default()
                self._submit()
            case "tab":
                event.stop()
                event.prevent_default()
                if (whole := completed(self.text)) != self.text:
                    self.put(Draft(whole))
            case "ctrl+j" | "shift+enter":
                event.stop()
                event.prevent_default()
                self._replace_via_keyboard("\n", *self.selection)
            case "backspace" | "ctrl+h" if self._delete_chip():
                event.stop()
                event.prevent_default()
            case _:
                await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = unpaste(event.text)
        if folds(text):
            text = self._chip(text)
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def _submit(self) -> None:
        draft = self.draft
        if draft.text.strip():
            self.post_message(self.Submitted(draft))

    def _delete_chip(self) -> bool:
        """A backspace behind a chip takes the whole chip: half of one would stand for nothing."""
        row, column = self.cursor_location
        if self.selection.start != self.selection.end:
            return False
        before = self.document.get_line(row)[:column]
        chip = next((chip for chip in self._pastes if before.endswith(chip)), None)
        if chip is None:
            return False
        self.delete((row, column - len(chip)), (row, column))
        return True

    def action_older(self) -> None:
        self._walk(self.prompts.older, self.action_cursor_up)

    def action_newer(self) -> None:
        self._walk(self.prompts.newer, self.action_cursor_down)

    def _walk(self, step: Callable[[], Draft | None], move: Callable[[], None]) -> None:
        """Through earlier prompts while nothing of one's own is written; else the cursor moves."""
        if self.text and self.text != self._recalled:
            self.prompts.leave()
            move()
        elif draft := step():
            self._recalled = draft.text
            self.put(draft)

    def action_page(self, direction: int) -> None:
        self.post_message(self.Paged(direction))
