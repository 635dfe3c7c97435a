"""What can be done with the messages of the chat: the transcript's keys while it has the focus."""

from typing import TYPE_CHECKING

from mtplx_tui.clipboard import copy
from mtplx_tui.conversation import Said
from mtplx_tui.layout.markdown import code_blocks
from mtplx_tui.screens.ask import AskScreen
from mtplx_tui.screens.steps import StepsScreen
from mtplx_tui.session_export import document
from mtplx_tui.store import StoreError
from mtplx_tui.widgets.blocks import Answer, Block, UserMessage
from mtplx_tui.widgets.tool_card import ToolCard

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen


class Reading:
    """One action a key, on the chosen block."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self._code = 0
        self._code_of: Block | None = None
        self._sought = ""

    @property
    def _chosen(self) -> tuple[int, Said] | None:
        """The chosen message with its place in the conversation."""
        block = self._chat.transcript.chosen
        said = block.said if isinstance(block, UserMessage | Answer | ToolCard) else None
        places = [place for place, each in enumerate(self._chat.talk.conversation.said) if each is said]
        return (places[0], said) if said is not None and places else None

    def copy_message(self) -> None:
        if chosen := self._chosen:
            self._copy(chosen[1].content)

    def copy_code(self) -> None:
        """The first code block, at the next press the second, and so on."""
        chosen, block = self._chosen, self._chat.transcript.chosen
        if chosen is None:
            return
        blocks = code_blocks(chosen[1].content)
        if not blocks:
            self._chat.say("This message has no code block.")
            return
        self._code = (self._code + 1) % len(blocks) if block is self._code_of else 0
        self._code_of = block
        self._copy(blocks[self._code], f"Code block {self._code + 1} of {len(blocks)}. ")

    async def copy_all(self) -> None:
        talk = self._chat.talk
        if talk.conversation.session.id is None:
            self._chat.say("Nothing is saved of this chat yet.")
            return
        facts, rows = await self._chat.saved.load(talk.conversation.session.id)
        self._copy(document(facts, rows, "md"))

    def _copy(self, text: str, before: str = "") -> None:
        self._chat.say(before + copy(text, self._chat.app.copy_to_clipboard))

    def edit(self) -> None:
        """Put a message of the user's back into the composer; sent, it takes the old one's place."""
        chosen = self._chosen
        if chosen is None or chosen[1].role != "user":
            self._chat.say("Only messages of yours can be edited; r has an answer made anew.")
        elif self._chat.may_switch():
            self._chat.sending.edit(chosen[0], self._chat.composer.draft_of(chosen[1].content))

    def regenerate(self) -> None:
        """Another answer, as another version; from a question, to that question."""
        chosen = self._chosen
        if chosen is None or not self._chat.may_switch():
            return
        said = self._chat.talk.conversation.said
        place = next((i for i in range(chosen[0], len(said)) if said[i].role == "assistant"), None)
        if place is not None:
            self._chat.sending.again(place)
        elif said[-1].role == "tool":
            self._chat.sending.go_on()
        else:
            self._chat.say("There is no answer yet to make anew.")

    def steps(self) -> None:
        """How the chosen answer was made."""
        block, talk = self._chat.transcript.chosen, self._chat.talk
        if not isinstance(block, Answer):
            self._chat.say("Only answers are made in steps; choose one with the arrow keys.")
            return
        if talk.turn is not None and talk.turn.answer is block:
            trace = talk.turn.trace
        else:
            trace = talk.traces.of(block.said.ref) if block.said is not None else None
        if trace is None:
            self._chat.say("The steps of this answer are not known: they are kept until the program ends, not saved.")
        elif trace.ended and not trace.steps:
            self._chat.say("This server does not tell its steps.")
        else:
            self._chat.app.push_screen(StepsScreen(self._chat.services.glyphs, trace, talk))

    async def version(self, by: int) -> None:
        """The version before or after the chosen message, with what followed it."""
        chosen, session = self._chosen, self._chat.talk.conversation.session
        if chosen is None or session.id is None or chosen[1].ref.id is None or not self._chat.may_switch():
            return
        if chosen[1].versions == 1:
            self._chat.say("This message has one version; e or r makes another.")
            return
        number, message = session.id, chosen[1].ref.id
        try:
            await self._chat.saved.call(lambda store: store.version(number, message, by))
            await self._chat.saved.open(number, place=chosen[0])
        except StoreError as error:
            self._chat.say(str(error), "error")

    async def fork(self) -> None:
        """A chat of its own with everything up to the chosen message."""
        chosen, session = self._chosen, self._chat.talk.conversation.session
        if chosen is None or session.id is None or chosen[1].ref.id is None or not self._chat.may_switch():
            return
        try:
            await self._chat.saved.fork(session.id, chosen[1].ref.id)
        except StoreError as error:
            self._chat.say(str(error), "error")

    async def find(self) -> None:
        text = await self._chat.app.push_screen_wait(AskScreen("find in this chat", self._sought))
        if text:
            self._sought = text
            self.find_next()

    def find_next(self) -> None:
        if not self._sought:
            self._chat.say("/ asks for the text to find.")
        elif not self._chat.transcript.find(self._sought):
            self._chat.say(f"{self._sought!r} is not in this chat.")
