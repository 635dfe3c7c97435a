"""A turn of the chat from Enter to the last token, as a state machine. No Textual here.

idle -> loading -> rendering -> queued -> prefill -> decode -> idle
                                  \\________\\_________\\-> stopping -> idle
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.events import FinishEvent
from mtplx_tui.bridge import Bridge, Pulled
from mtplx_tui.conversation import Conversation, Phase, Said
from mtplx_tui.drafts import Draft
from mtplx_tui.link import Link
from mtplx_tui.recorder import MessageRef, Recorder, SessionRef, TurnRecord
from mtplx_tui.store import MessageRow, SessionFacts
from mtplx_tui.widgets.blocks import Answer, Block, Notice, UserMessage

_PHASES = {"wait": Phase.QUEUED, "prefill": Phase.PREFILL, "decode": Phase.DECODE}


@dataclass(slots=True, eq=False)
class Turn:
    """What was sent and what comes back. `request_id` is set once it is on its way.

    Attributes:
        text: what the user wrote; None where another answer to an earlier message is wanted.
        replaced, taken: messages that it took off the path and blocks off the transcript, for if it can not be sent.
    """

    draft: Draft
    text: str | None
    user: UserMessage | None
    answer: Answer
    parent: MessageRef
    replaced: list[Said] = field(default_factory=list)
    taken: list[Block] = field(default_factory=list)
    phase: Phase = Phase.LOADING
    request_id: str | None = None
    record: TurnRecord | None = None
    withdrawn: bool = False

    @property
    def blocks(self) -> list[UserMessage | Answer]:
        """What of the transcript belongs to it."""
        return [self.answer] if self.user is None else [self.user, self.answer]


class Talk:
    """The conversation and the turn that runs, if one does."""

    def __init__(self, link: Link, bridge: Bridge, recorder: Recorder) -> None:
        self._link = link
        self._bridge = bridge
        self._recorder = recorder
        self.turn: Turn | None = None
        self.conversation = Conversation(SessionRef(""))

    @property
    def phase(self) -> Phase:
        return self.turn.phase if self.turn else Phase.IDLE

    def start_over(self) -> None:
        """A new, empty conversation; nothing is stored before its first message."""
        self.conversation = Conversation(SessionRef(""))
        self._bridge.state.own(None)

    def resume(self, facts: SessionFacts, rows: list[MessageRow]) -> None:
        session = SessionRef(facts.model, facts.id, facts.system, dict(facts.options))
        self.conversation = Conversation.resumed(session, rows)
        self._bridge.state.own(None)

    def begin(self, draft: Draft, user: UserMessage, answer: Answer) -> Turn:
        """Take the message into the conversation. `submit` it once the model is loaded."""
        assert self.turn is None
        text = draft.expanded()
        parent = self.conversation.end
        self.turn = Turn(draft, text, user, answer, parent)
        user.said = self.conversation.ask(text)
        return self.turn

    def begin_again(self, place: int, answer: Answer) -> Turn:
        """Have the message at `place`, an answer of the model, made anew; the old one stays as another version."""
        assert self.turn is None
        replaced = self.conversation.cut(place)
        self.turn = Turn(Draft(), None, None, answer, self.conversation.end, replaced)
        return self.turn

    def begin_instead(self, place: int, draft: Draft, user: UserMessage, answer: Answer) -> Turn:
        """Send another message in the place of the user's one at `place`; the old one stays as another version."""
        replaced = self.conversation.cut(place)
        turn = self.begin(draft, user, answer)
        turn.replaced = replaced
        said = self.conversation.said[-1]
        said.version = said.versions = replaced[0].versions + 1
        return turn

    async def submit(self, turn: Turn) -> str | None:
        """Render the conversation and hand it to the engine; the answer is why that failed, if it did.

        Tokenising a long text takes a while, so it happens off the screen's thread.
        """
        try:
            model = self._link.model
            question = self.conversation.question(model.sampling)
            self.conversation.session.model = self.conversation.session.model or model.name
            record = TurnRecord(self.conversation.session, turn.text, turn.parent)
            self._bridge.follow(question.id)
            turn.request_id = question.id
            await asyncio.to_thread(self._link.ask, question, record.on_event)
        except EngineError as error:
            return str(error)
        except Exception as error:  # whatever it is, what the user wrote must come back to them
            return f"This message could not be sent: {type(error).__name__}: {error}"
        if turn.withdrawn:
            self._link.cancel(question.id)
        else:
            self._started(turn, question.id, record)
        return None

    def _started(self, turn: Turn, request_id: str, record: TurnRecord) -> None:
        if turn.text is not None:
            asked = next(said for said in reversed(self.conversation.said) if said.role == "user")
            asked.ref = record.asked
        turn.record = record
        if self.conversation.said[-1].role == "assistant":  # it began while the engine took the question in
            self.conversation.said[-1].ref = record.answer
        self._recorder.start(record)
        if turn.phase is Phase.STOPPING:  # Esc came while the engine was taking it in
            self._link.cancel(request_id)

    def withdraw(self, turn: Turn) -> Draft:
        """Take an unsent message out again; gives what goes back into the composer."""
        turn.withdrawn = True
        if turn.text is not None:
            self.conversation.said.pop()
        self.conversation.said += turn.replaced
        self.turn = None
        return turn.draft

    def stop(self) -> bool:
        """End the running answer after its current step. False where there is nothing the engine has."""
        turn = self.turn
        if turn is None or turn.phase in (Phase.LOADING, Phase.RENDERING):
            return False
        if turn.phase is not Phase.STOPPING:
            turn.phase = Phase.STOPPING
            if turn.request_id is not None:
                self._link.cancel(turn.request_id)
        return True

    def take(self, pulled: Pulled) -> FinishEvent | None:
        """Add what was pulled to the answer; gives the end of the turn when it came."""
        turn = self.turn
        if turn is None:
            return None
        facts = self._bridge.state.request(turn.request_id) if turn.request_id else None
        answer = turn.answer
        if pulled.spans:
            said = self.conversation.hear(pulled.spans)
            if answer.said is None:
                answer.said = said
                if turn.text is None and turn.replaced:
                    said.version = said.versions = turn.replaced[0].versions + 1
            if turn.record is not None:
                said.ref = turn.record.answer
            for span in pulled.spans:
                answer.append(span.kind, span.text)
        if facts is not None:
            if turn.phase is not Phase.STOPPING and facts.phase != "done":
                turn.phase = _PHASES[facts.phase]
            answer.thought_tokens, answer.thought_s = facts.thought, facts.thought_s
            answer.progress = (
                facts.read / facts.prompt_tokens if facts.phase == "prefill" and facts.prompt_tokens else None
            )
        finish = pulled.finish
        if finish is not None:
            answer.thought_tokens = finish.usage.reasoning_tokens or answer.thought_tokens
            answer.finish(ending(finish, answer.empty))
            self.turn = None
        return finish


def ending(finish: FinishEvent, empty: bool) -> Notice | None:
    """What an answer's end says, where it is more than the model's own stop."""
    match finish.reason:
        case "cancelled":
            return Notice("stopped before the first token" if empty else "stopped; what came is kept")
        case "length":
            return Notice(
                f"cut at {finish.usage.completion_tokens} tokens: the length limit, or the context is full", "warn"
            )
        case "error":
            return Notice(finish.error or "the engine gave no reason", "error")
        case _:
            return Notice("the model said nothing") if empty else None


def resumed_blocks(
    conversation: Conversation, rows: list[MessageRow], answer: Callable[[str, str, str], Answer]
) -> list[UserMessage | Answer]:
    """The transcript of a stored conversation. `answer` makes a block of reasoning, content and tool text."""
    blocks: list[UserMessage | Answer] = []
    for said, row in zip(conversation.said, rows, strict=True):
        if row.role == "user":
            blocks.append(UserMessage(row.content, None, said))
        elif row.role == "assistant":
            stats = row.stats or {}
            block = answer(row.reasoning, row.content, str(stats.get("tool", "")))
            block.said = said
            block.thought_tokens = stats.get("usage", {}).get("reasoning_tokens") or None
            if row.finish_reason is None:
                block.note = Notice("interrupted: the program ended while this was written", "warn")
            elif row.finish_reason == "error":
                block.note = Notice(str(stats.get("error", "")) or "ended by an error", "error")
            elif row.finish_reason == "cancelled":
                block.note = Notice(
                    "stopped; what came is kept" if not block.empty else "stopped before the first token"
                )
            blocks.append(block)
    return blocks
