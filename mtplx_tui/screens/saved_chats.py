"""Saved chats in the chat's place: opening one, going on in a copy, and what was asked in earlier ones."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mtplx_tui.store import MessageRow, SessionFacts, Store, StoreGoneError
from mtplx_tui.talk import resumed_blocks
from mtplx_tui.widgets.blocks import Answer, Block, UserMessage, Welcome
from mtplx_tui.widgets.tool_card import ToolCard

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen

T = TypeVar("T")

HISTORY_SESSIONS = 10


class SavedChats:
    """All methods raise StoreError where the store refuses."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat

    async def call(self, work: Callable[[Store], T]) -> T:
        """Run something on the store, after all that is to be saved before it."""
        return await asyncio.wrap_future(self._chat.services.recorder.call(work))

    async def load(self, session_id: int) -> tuple[SessionFacts, list[MessageRow]]:
        """A chat as it is saved."""
        return await self.call(lambda store: (store.facts(session_id), store.messages(session_id)))

    async def reread(self) -> bool:
        """Take in the name that the chat which is shown has now; False where it was deleted."""
        session = self._chat.talk.conversation.session
        if (number := session.id) is not None:
            try:
                session.title = (await self.call(lambda store: store.facts(number))).title
            except StoreGoneError:
                return False
            self._chat.draw_top()
        return True

    async def open(self, session_id: int, place: int | None = None) -> None:
        """Show a saved chat and go on with it; `place` is the message to choose."""
        chat = self._chat
        facts, rows = await self.load(session_id)
        chat.talk.resume(facts, rows)
        self._show(resumed_blocks(chat.talk.conversation, rows, self._answer))
        if place is None:
            chat.composer.focus()
        elif place < len(chat.talk.conversation.said):
            said = chat.talk.conversation.said[place]
            chosen = [block for block in chat.transcript.blocks
                      if isinstance(block, UserMessage | Answer | ToolCard) and block.said is said]  # fmt: skip
            chat.transcript.choose(chosen[0])
        chat.calls.reopen()
        chat.figures.draw()

    async def fork(self, session_id: int, message_id: int | None = None) -> None:
        """Go on in a copy of a saved chat, up to a message or whole."""
        made = await self.call(lambda store: store.fork(session_id, message_id))
        await self.open(made)
        where = "a copy" if message_id is None else "a copy up to here"
        self._chat.say(f"This is chat {made} now, {where}; chat {session_id} stays as it was.")

    async def prompts(self) -> list[str]:
        """What the user asked in the last few chats, oldest first."""
        return await self.call(_recent_prompts)

    def _answer(self, reasoning: str, content: str, tool: str) -> Answer:
        return Answer(self._chat.services.glyphs, reasoning, content, tool)

    def _show(self, blocks: list[UserMessage | Answer | ToolCard]) -> None:
        shown: list[Block] = [*blocks]
        self._chat.transcript.replace(shown or [Welcome()])
        composer = self._chat.composer
        for block in blocks:
            if isinstance(block, UserMessage):
                composer.prompts.add(composer.draft_of(block.text))


def _recent_prompts(store: Store) -> list[str]:
    rows = [store.messages(session.id) for session in reversed(store.sessions(HISTORY_SESSIONS))]
    return [message.content for messages in rows for message in messages if message.role == "user"]
