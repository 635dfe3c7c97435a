"""What becomes of the model's tool calls: each waits for the user's word, runs, and the model goes on with the results.

Nothing runs without a word: of this one call, or of all of this tool's calls in this chat.
"""

import asyncio
from typing import TYPE_CHECKING

from mtplx_tui.tools.calls import DENIED, DENIED_WRITING_ON, ToolCall
from mtplx_tui.tools.errors import ToolError
from mtplx_tui.tools.toolbox import Toolbox
from mtplx_tui.widgets.tool_card import ToolCard, Word

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen
    from mtplx_tui.talk import Turn

MOST_ROUNDS = 8
"""Answers in a row whose calls run by an earlier word alone; then the user is asked again, so no loop is endless."""


class Calls:
    """The calls of the chat's last answer."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self._allowed: set[str] = set()
        self._rounds = 0
        self._cards: list[ToolCard] = []
        self._recorded: asyncio.Event | None = None  # the answer is being saved, so what follows it may be

    @property
    def waiting(self) -> list[ToolCard]:
        """Those that wait for a word, and still stand at the end of the chat."""
        calls = self._chat.talk.conversation.open_calls
        return [card for card in self._cards if card.call in calls and card.call.state == "waiting"]

    @property
    def busy(self) -> bool:
        """Whether one runs, or the saving of the answer that made them has yet to begin."""
        unsaved = self._recorded is not None and not self._recorded.is_set()
        return any(card.call.state == "allowed" for card in self._cards) or bool(unsaved and self.waiting)

    def new_chat(self) -> None:
        """Another chat is shown: what was allowed in the last one is not allowed here."""
        self._allowed.clear()
        self._rounds = 0
        self._cards = []

    def reopen(self) -> None:
        """A saved chat is shown. Where it ends with calls that nobody decided, they wait again."""
        self.new_chat()
        if self._chat.talk.toolbox is None:
            return
        calls = self._chat.talk.conversation.open_calls
        for call in calls:
            call.state = "waiting"
        self._recorded = None
        self._offer([block for block in self._chat.transcript.blocks
                     if isinstance(block, ToolCard) and block.call in calls])  # fmt: skip

    def show(self, turn: "Turn") -> None:
        """Draw the calls of an answer that is being written."""
        for call in turn.calls[len(turn.cards) :]:
            turn.cards.append(ToolCard(call))
            self._chat.transcript.append(turn.cards[-1])
        if turn.cards:
            self._chat.transcript.update(turn.cards[-1])

    def take(self, turn: "Turn") -> None:
        """The answer has ended: its calls wait for a word, or run where that was given before."""
        gone = [card for card in turn.cards if card.call not in turn.calls]  # cut short: they are text after all
        if gone:
            self._chat.transcript.take_out(*gone)
        cards = [card for card in turn.cards if card not in gone]
        for card in cards:
            self._chat.transcript.update(card)
        self._recorded = turn.recorded
        if any(card.call.state == "waiting" for card in cards):
            self._offer(cards)

    def user_spoke(self) -> None:
        """The user writes on: what still waits is denied, and the model is told so before the message."""
        self._rounds = 0
        for card in self.waiting:
            card.call.end("denied", DENIED_WRITING_ON)
        self._settle()

    async def decide(self, card: ToolCard, word: Word) -> None:
        """Do what the user says of a call that waits."""
        toolbox = self._chat.talk.toolbox
        if card not in self.waiting:
            return
        self._rounds = 0
        if toolbox is None and word != "deny":
            self._chat.say("The tools of this chat are off; /tools turns them on.")
            return
        if toolbox is None or word == "deny":
            card.call.end("denied", DENIED)
            await self._decided(card)
            return
        cards = [card]
        if word == "always":
            self._allowed.add(card.call.name)
            cards += [other for other in self.waiting if other is not card and other.call.name in self._allowed]
        await self._run(cards, toolbox)

    def _offer(self, cards: list[ToolCard]) -> None:
        self._cards = cards
        toolbox, allowed = self._chat.talk.toolbox, [card for card in cards if card.call.name in self._allowed]
        if allowed and self._rounds >= MOST_ROUNDS:
            for card in allowed:
                card.note = f"{MOST_ROUNDS} rounds of calls ran by themselves."
                self._chat.transcript.update(card)
        elif allowed and toolbox is not None:
            self._rounds += 1
            self._chat.run_worker(self._run(allowed, toolbox), group="tools")
        if self._chat.transcript.has_focus and (waiting := self.waiting):
            self._chat.transcript.choose(waiting[0])
        self._chat.calls_changed()

    async def _run(self, cards: list[ToolCard], toolbox: Toolbox) -> None:
        for card in cards:
            card.call.state = "allowed"
        for card in cards:
            self._chat.transcript.update(card)
            await asyncio.to_thread(_run, card.call, toolbox)
            await self._decided(card)

    async def _decided(self, card: ToolCard) -> None:
        if card.note:
            card.note = ""
        if card not in self._cards or card.call not in self._chat.talk.conversation.open_calls:
            return  # another chat is shown by now, or the answer was made anew
        self._chat.transcript.update(card)
        if self._recorded is not None:
            await self._recorded.wait()
        if not all(card.call.decided for card in self._cards):
            if self._chat.transcript.has_focus and (waiting := self.waiting):
                self._chat.transcript.choose(waiting[0])
            self._chat.calls_changed()
        elif self._settle():
            self._chat.sending.go_on()

    def _settle(self) -> bool:
        """Take the results into the chat, once all are there; False where that was done before, or is not yet time."""
        cards, open_calls = self._cards, self._chat.talk.conversation.open_calls
        if not cards or not all(card.call.decided and card.call in open_calls for card in cards):
            return False
        self._cards = []
        for card, said in zip(cards, self._chat.talk.answer_calls([card.call for card in cards]), strict=True):
            card.said = said
            self._chat.transcript.update(card)
        self._chat.calls_changed()
        return True


def _run(call: ToolCall, toolbox: Toolbox) -> None:
    try:
        call.end("done", toolbox.run(call.name, call.arguments))
    except ToolError as error:
        call.end("failed", f"Error: {error}")
