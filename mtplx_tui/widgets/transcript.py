"""The conversation while it is read: which message is chosen, and what can be done with it by keys."""

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.keys import CARD_KEYS, READING_KEYS, bindings
from mtplx_tui.layout.spans import Line, merge
from mtplx_tui.widgets.block_view import BlockView
from mtplx_tui.widgets.blocks import Answer, Block, UserMessage
from mtplx_tui.widgets.tool_card import ToolCard, Word


class Transcript(BlockView, can_focus=True):
    """The blocks of the chat; `chosen` is the one that the keys are about, while it has the focus."""

    FOCUS_ON_CLICK = False
    BINDINGS: ClassVar[list[BindingType]] = [*bindings((*READING_KEYS, *CARD_KEYS), priority=False)]

    class Left(Message):
        """The reader types on: `text` belongs into the message that is being written."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Chosen(Message):
        """Another block is the chosen one."""

    class Decided(Message):
        """The user's word on a tool call: once, always or deny."""

        def __init__(self, card: ToolCard, word: Word) -> None:
            super().__init__()
            self.card = card
            self.word = word

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.chosen: Block | None = None

    def replace(self, blocks: Iterable[Block]) -> None:
        self.chosen = None
        super().replace(blocks)

    def choose(self, block: Block | None) -> None:
        """Mark a message and bring it into view; None marks none."""
        before, self.chosen = self.chosen, block
        for each in (before, block):
            if each is not None and each in self._blocks:
                self.update(each)
        if block is not None:
            self._show(block)
        self.post_message(self.Chosen())

    def on_focus(self) -> None:
        """The first tool call that waits is what one comes for, else the last message."""
        messages = self._messages()
        waiting = (block for block in messages if isinstance(block, ToolCard) and block.call.state == "waiting")
        self.choose(next(waiting, messages[-1] if messages else None))

    def on_blur(self) -> None:
        self.choose(None)

    def action_choose(self, by: int) -> None:
        """The message before or after; at a message that is taller than the view, first its other end."""
        messages = self._messages()
        if not messages:
            return
        place = messages.index(self.chosen) if self.chosen in messages else len(messages)
        self.choose(messages[min(max(place + by, 0), len(messages) - 1)])

    def action_scroll(self, by: int) -> None:
        self.scroll_rows(by * self.page_rows)

    @property
    def decides(self) -> ToolCard | None:
        """The chosen tool call, if it waits for the user's word."""
        chosen = self.chosen
        return chosen if isinstance(chosen, ToolCard) and chosen.call.state == "waiting" else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.decides is not None if action == "decide" else True

    def action_decide(self, word: Word) -> None:
        if (card := self.decides) is not None:
            self.post_message(self.Decided(card, word))

    def action_fold(self) -> None:
        if isinstance(self.chosen, ToolCard):
            self.chosen.unfold = not self.chosen.unfold
            self.update(self.chosen)
        if isinstance(self.chosen, Answer) and self.chosen.has_thinking:
            self.chosen.unfold = not self.chosen.unfolded
            self.update(self.chosen)

    def find(self, text: str) -> bool:
        """Choose the next message with this text, from the chosen one on and round; False where there is none."""
        messages = self._messages()
        start = messages.index(self.chosen) + 1 if self.chosen in messages else 0
        for block in [*messages[start:], *messages[:start]]:
            if block.said is not None and text.casefold() in block.said.content.casefold():
                self.choose(block)
                return True
        return False

    def _messages(self) -> list[UserMessage | Answer | ToolCard]:
        """What can be chosen; an answer that is nothing but calls is seen by its cards."""
        return [
            block
            for block in self._blocks
            if isinstance(block, UserMessage | ToolCard)
            or (isinstance(block, Answer) and not (block.calling and block.empty))
        ]

    def _show(self, block: Block) -> None:
        """Scroll no further than it takes to have the block's beginning in view."""
        index = self._blocks.index(block)
        if index < self._first:
            self._first = index
            self._lay_out()
        top, end = self._tops[index - self._first], self._tops[index - self._first + 1]
        view = self.scroll_offset.y
        if top < view or end > view + self.size.height:
            self.following = False
            self._steer(
                max(min(top, end - 1), 0) if top < view or end - top > self.size.height else end - self.size.height
            )

    def _drawn(self, block: Block) -> list[Line]:
        lines = super()._drawn(block)
        if block is not self.chosen:
            return lines
        bar = (self._glyphs.bar, "accent strong")
        return [merge([bar, (text[1:], role), *rest]) if line else (bar,)
                for line in lines[:-1] for (text, role), *rest in [line or (("", ""),)]] + lines[-1:]  # fmt: skip

    def on_key(self, event: events.Key) -> None:
        """Whatever is no key of reading goes on in the composer."""
        keys = READING_KEYS if self.decides is None else (*READING_KEYS, *CARD_KEYS)
        if event.is_printable and event.character and not any(key.key == event.key for key in keys):
            event.stop()
            self.post_message(self.Left(event.character))
