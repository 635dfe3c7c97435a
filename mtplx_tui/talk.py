"""A turn of the chat from Enter to the last token, as a state machine. No Textual here.

idle -> loading -> rendering -> queued -> prefill -> decode -> idle
                                  \\________\\_________\\-> stopping -> idle
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import EngineError
from engine.events import FinishEvent
from mtplx_tui.bridge import Bridge, Pulled
from mtplx_tui.conversation import Conversation, Phase
from mtplx_tui.drafts import Draft
from mtplx_tui.link import Link, Question
from mtplx_tui.recorder import Recorder, SessionRef, TurnRecord
from mtplx_tui.store import MessageRow
from mtplx_tui.widgets.blocks import Answer, Notice, UserMessage

_PHASES = {"wait": Phase.QUEUED, "prefill": Phase.PREFILL, "decode": Phase.DECODE}


@dataclass(slots=True, eq=False)
class Turn:
    """What was sent and what comes back. `request_id` is set once the engine has it."""

    draft: Draft
    text: str
    user: UserMessage
    answer: Answer
    phase: Phase = Phase.LOADING
    request_id: str | None = None
    withdrawn: bool = False


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

    def resume(self, session_id: int, model: str, rows: list[MessageRow]) -> None:
        self.conversation = Conversation.resumed(SessionRef(model, session_id), rows)
        self._bridge.state.own(None)

    def begin(self, draft: Draft, user: UserMessage, answer: Answer) -> Turn:
        """Take the message into the conversation. `submit` it once the model is loaded."""
        assert self.turn is None
        text = draft.expanded()
        self.conversation.ask(text)
        self.turn = Turn(draft, text, user, answer)
        return self.turn

    async def submit(self, turn: Turn) -> str | None:
        """Render the conversation and hand it to the engine; the answer is why that failed, if it did.

        Tokenising a long text takes a while, so it happens off the screen's thread.
        """
        turn.phase = Phase.RENDERING
        question = Question(self.conversation.messages())
        try:
            self.conversation.session.model = self.conversation.session.model or self._link.model.name
            record = TurnRecord(self.conversation.session, turn.text)
            self._bridge.follow(question.id)
            await asyncio.to_thread(self._link.ask, question, record.on_event)
        except EngineError as error:
            return str(error)
        except Exception as error:  # whatever it is, what the user wrote must come back to them
            return f"This message could not be sent: {type(error).__name__}: {error}"
        self._started(turn, question.id, record)
        return None

    def _started(self, turn: Turn, request_id: str, record: TurnRecord) -> None:
        turn.request_id = request_id
        self._recorder.start(record)
        if turn.phase is Phase.STOPPING:  # Esc came while the engine was taking it in
            self._link.cancel(request_id)

    def withdraw(self, turn: Turn) -> Draft:
        """Take an unsent message out again; gives what goes back into the composer."""
        turn.withdrawn = True
        self.conversation.take_back()
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
            self.conversation.hear(pulled.spans)
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


def resumed_blocks(rows: list[MessageRow], answer: Callable[[str, str, str], Answer]) -> list[UserMessage | Answer]:
    """The transcript of a stored conversation. `answer` makes a block of reasoning, content and tool text."""
    blocks: list[UserMessage | Answer] = []
    for row in rows:
        if row.role == "user":
            blocks.append(UserMessage(row.content, None))
        elif row.role == "assistant":
            stats = row.stats or {}
            block = answer(row.reasoning, row.content, str(stats.get("tool", "")))
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
