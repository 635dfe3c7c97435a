"""A question on its way to the model: written, edited, asked again, handed in, and taken back where it can not be."""

from typing import TYPE_CHECKING

from mtplx_tui.conversation import Phase
from mtplx_tui.drafts import Draft
from mtplx_tui.slash import as_message
from mtplx_tui.talk import Turn
from mtplx_tui.widgets.blocks import Answer, Notice, UserMessage, Welcome

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen


class Sending:
    """What begins a turn of the chat, until the engine has it.

    Attributes:
        editing: place in the conversation of the message that the composer holds to be sent anew; else None.
    """

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat
        self.editing: int | None = None
        self._set_aside = Draft()

    def begin(self, draft: Draft) -> None:
        """Send what was written."""
        chat = self._chat
        draft = Draft(as_message(draft.text), draft.pastes)
        chat.calls.user_spoke()
        self.end_welcome()
        user, answer = UserMessage(draft.expanded(), chat.services.wall()), self._answer()
        if self.editing is None:
            turn = chat.talk.begin(draft, user, answer)
        else:
            turn = chat.talk.begin_instead(self.editing, draft, user, answer)
        chat.composer.put(Draft())
        chat.composer.prompts.add(draft)
        self.end_edit()
        self._show(turn)

    def go_on(self) -> None:
        """Have the model go on from the results of its tool calls."""
        if self._chat.may_ask():
            self._show(self._chat.talk.go_on(self._answer()))

    def again(self, place: int) -> None:
        """Have the answer at `place` made anew."""
        if self._chat.may_ask():
            self._show(self._chat.talk.begin_again(place, self._answer()))

    def edit(self, place: int, draft: Draft) -> None:
        """Have a message of the user's edited; what is being written meanwhile is set aside."""
        composer = self._chat.composer
        self.editing, self._set_aside = place, composer.draft
        composer.put(draft)
        self._chat.query_one("#compose").border_title = "edit message (Esc leaves it as it was)"
        composer.focus()

    def end_edit(self) -> None:
        """Put back what was being written before an edit, if there is one."""
        if self.editing is not None:
            self.editing = None
            self._chat.query_one("#compose").border_title = "message"
            self._chat.composer.put(self._set_aside)

    def end_welcome(self) -> None:
        """The chat is no empty one any more."""
        transcript = self._chat.transcript
        if any(isinstance(block, Welcome) for block in transcript.blocks):
            transcript.replace([block for block in transcript.blocks if not isinstance(block, Welcome)])

    def hand_in(self, turn: Turn) -> None:
        """Give the turn to the engine, which takes it in on another thread."""
        turn.phase = Phase.RENDERING  # now: the next beat may come before the worker begins
        self._chat.run_worker(self._submit(turn), group="submit")

    def give_back(self, turn: Turn) -> None:
        """Take an unsent message out of the chat and put it back into the composer, before what stands there."""
        chat = self._chat
        draft = chat.talk.withdraw(turn)
        chat.transcript.take_out(*turn.blocks)
        chat.transcript.add(*turn.taken)
        written = chat.composer.draft
        parts = [text for text in (draft.text, written.text) if text]
        chat.composer.put(Draft("\n".join(parts), {**written.pastes, **draft.pastes}))

    def _answer(self) -> Answer:
        return Answer(self._chat.services.glyphs, live=True)

    def _show(self, turn: Turn) -> None:
        transcript = self._chat.transcript
        gone = {id(said) for said in turn.replaced}
        taken = [block for block in transcript.blocks
                 if isinstance(block, UserMessage | Answer) and id(block.said) in gone]  # fmt: skip
        if taken:
            first = transcript.blocks.index(taken[0])
            turn.taken = list(transcript.blocks[first:])
            transcript.replace(transcript.blocks[:first])
        transcript.add(*turn.blocks)
        if transcript.has_focus:
            transcript.choose(turn.answer)
        self._chat.advance(turn, False)
        self._chat.figures.draw()

    async def _submit(self, turn: Turn) -> None:
        failure = await self._chat.talk.submit(turn)
        if failure is not None:
            self.give_back(turn)
            self._chat.transcript.add(Notice(failure, "error"))
            self._chat.figures.draw()
