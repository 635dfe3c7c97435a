"""A turn of the chat from Enter to the last token, as a state machine. No Textual here.

idle -> loading -> rendering -> queued -> prefill -> decode -> idle
                                  \\________\\_________\\-> stopping -> idle
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from engine.errors import EngineError
from engine.events import FinishEvent, Span
from mtplx_tui.bridge import Bridge, Pulled
from mtplx_tui.conversation import Conversation, Phase, Said
from mtplx_tui.drafts import Draft
from mtplx_tui.link import Link
from mtplx_tui.recorder import MessageRef, Recorder, ResultRecord, SessionRef, TurnRecord
from mtplx_tui.store import MessageRow, SessionFacts
from mtplx_tui.tools.calls import ToolCall
from mtplx_tui.tools.heard import Heard
from mtplx_tui.tools.toolbox import Toolbox
from mtplx_tui.trace import Trace, Traces
from mtplx_tui.widgets.blocks import Answer, Block, Notice, UserMessage
from mtplx_tui.widgets.tool_card import ToolCard

_PHASES = {"wait": Phase.QUEUED, "prefill": Phase.PREFILL, "decode": Phase.DECODE}


@dataclass(slots=True, eq=False)
class Turn:
    """What was sent and what comes back. `request_id` is set once it is on its way.

    Attributes:
        text: what the user wrote; None where another answer to an earlier message is wanted.
        replaced, taken: messages that it took off the path and blocks off the transcript, for if it can not be sent.
        heard: tells the model's tool calls from its text; None while tools are off. trace: how the answer is made.
        cards: the calls as the transcript shows them. recorded: set once its saving has begun.
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
    heard: Heard | None = None
    trace: Trace | None = None
    cards: list[ToolCard] = field(default_factory=list)
    recorded: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def blocks(self) -> list[UserMessage | Answer]:
        """What of the transcript belongs to it."""
        return [self.answer] if self.user is None else [self.user, self.answer]

    @property
    def calls(self) -> list[ToolCall]:
        """What the model calls, as far as it has come."""
        return self.heard.calls if self.heard is not None else []


class Talk:
    """The conversation and the turn that runs, if one does.

    Attributes:
        traces: how the answers of this run were made.
        logprobs: how many alternatives are asked for beside each token of the next answers; None for none.
    """

    def __init__(
        self, link: Link, bridge: Bridge, recorder: Recorder, wall: Callable[[], datetime] = datetime.now
    ) -> None:
        self._link = link
        self._bridge = bridge
        self._recorder = recorder
        self._wall = wall
        self.turn: Turn | None = None
        self.traces = Traces()
        self.logprobs: int | None = None
        self.conversation = Conversation(SessionRef(""))

    @property
    def phase(self) -> Phase:
        return self.turn.phase if self.turn else Phase.IDLE

    def start_over(self) -> None:
        """A new, empty conversation; nothing is stored before its first message."""
        self.conversation = Conversation(SessionRef(""))
        self._bridge.state.own(None)

    def resume(self, facts: SessionFacts, rows: list[MessageRow]) -> None:
        session = SessionRef(facts.model, facts.id, facts.system, dict(facts.options), facts.title)
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

    def go_on(self, answer: Answer) -> Turn:
        """Have the model go on from the results of its calls."""
        assert self.turn is None
        self.turn = Turn(Draft(), None, None, answer, self.conversation.end)
        return self.turn

    @property
    def toolbox(self) -> Toolbox | None:
        """The tools of this chat; None while they are off."""
        return self.conversation.toolbox(self._wall)

    def answer_calls(self, calls: list[ToolCall]) -> list[Said]:
        """Take the results of the last answer's calls into the conversation, and save them."""
        results = []
        for call in calls:
            parent = self.conversation.end
            said = self.conversation.answer_call(call)
            self._recorder.start(ResultRecord(self.conversation.session, call, parent, said.ref))
            results.append(said)
        return results

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
            toolbox = self.toolbox
            question = self.conversation.question(model.sampling, toolbox, self.logprobs)
            self.conversation.session.model = self.conversation.session.model or model.name
            record = TurnRecord(self.conversation.session, turn.text, turn.parent)
            if toolbox is not None:
                turn.heard, record.heard = Heard(toolbox.named, question.id), Heard(toolbox.named, question.id)
            turn.trace = self.traces.start(record.answer)
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
        turn.recorded.set()
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
        if turn is None or (turn.record is None and turn.phase in (Phase.LOADING, Phase.RENDERING)):
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
        if turn.trace is not None:
            turn.trace.take(pulled.told)
        if pulled.spans:
            self._hear(turn, pulled.spans if turn.heard is None else tuple(turn.heard.take(pulled.spans)))
        if facts is not None:
            if turn.phase is not Phase.STOPPING and facts.phase != "done":
                turn.phase = _PHASES[facts.phase]
            answer.thought_tokens, answer.thought_s = facts.thought, facts.thought_s
            answer.progress = (
                facts.read / facts.prompt_tokens if facts.phase == "prefill" and facts.prompt_tokens else None
            )
        finish = pulled.finish
        if finish is not None:
            self._end(turn, finish)
        return finish

    def _hear(self, turn: Turn, spans: tuple[Span, ...]) -> None:
        answer, said = turn.answer, self.conversation.hear(spans)
        if answer.said is None:
            answer.said = said
            if turn.text is None and turn.replaced:
                said.version = said.versions = turn.replaced[0].versions + 1
        if turn.record is not None:
            said.ref = turn.record.answer
        for span in spans:
            answer.append(span.kind, span.text)
        answer.calling = bool(turn.calls)

    def _end(self, turn: Turn, finish: FinishEvent) -> None:
        answer = turn.answer
        if turn.heard is not None and answer.said is not None:
            self._hear(turn, tuple(turn.heard.end(finish.reason)))
            answer.said.calls = turn.calls
            if finish.reason == "stop":
                for call in turn.calls:
                    call.state = "waiting"
        if turn.trace is not None:
            turn.trace.ended = True
        answer.thought_tokens = finish.usage.reasoning_tokens or answer.thought_tokens
        answer.finish(ending(finish, answer.empty and not turn.calls))
        self.turn = None


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
) -> list[UserMessage | Answer | ToolCard]:
    """The transcript of a stored conversation. `answer` makes a block of reasoning, content and tool text."""
    blocks: list[UserMessage | Answer | ToolCard] = []
    for said, row in zip(conversation.said, rows, strict=True):
        if row.role == "user":
            blocks.append(UserMessage(row.content, None, said))
        elif row.role == "assistant":
            stats = row.stats or {}
            block = answer(row.reasoning, row.content, str(stats.get("tool", "")))
            block.said = said
            block.calling = bool(said.calls)
            block.thought_tokens = stats.get("usage", {}).get("reasoning_tokens") or None
            if row.finish_reason is None:
                block.note = Notice("interrupted: the program ended while this was written", "warn")
            elif row.finish_reason == "error":
                block.note = Notice(str(stats.get("error", "")) or "ended by an error", "error")
            elif row.finish_reason == "cancelled":
                block.note = Notice(
                    "stopped; what came is kept" if not block.empty else "stopped before the first token"
                )
            blocks += [block, *map(ToolCard, said.calls)]
        elif row.role == "tool":
            blocks += _card_of(said, blocks)
    return blocks


def _card_of(said: Said, blocks: list[UserMessage | Answer | ToolCard]) -> list[ToolCard]:
    """Tell the card of a call which message its result is; a card of its own where the call is not known."""
    (call,) = said.calls
    card = next((block for block in reversed(blocks) if isinstance(block, ToolCard) and block.call is call), None)
    made = card or ToolCard(call)
    made.said = said
    return [] if card else [made]
