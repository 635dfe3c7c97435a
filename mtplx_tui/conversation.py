"""The chat's own data: what was said, and how far the current turn is. No Textual here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path

from engine.chat import Message
from engine.events import Span
from engine.request import Sampling
from mtplx_tui.link import Question
from mtplx_tui.recorder import MessageRef, SessionRef
from mtplx_tui.store import MessageRow
from mtplx_tui.tools.calls import ToolCall, saved_calls, take_result
from mtplx_tui.tools.toolbox import Toolbox


class Phase(Enum):
    """Where the current turn is. Each value is what the screen's corner says."""

    IDLE = "READY"
    LOADING = "LOADING"
    RENDERING = "READING"
    QUEUED = "WAIT"
    PREFILL = "PREFILL"
    DECODE = "DECODE"
    STOPPING = "STOPPING"

    @property
    def idle(self) -> bool:
        return self is Phase.IDLE


@dataclass(slots=True)
class Said:
    """One message. `content` and `reasoning` are exactly what was typed or generated.

    Attributes:
        ref: where it is saved. version, versions: its place among those that follow the same message.
        calls: what an answer calls; of a tool's message, the one call that it is the result of.
    """

    role: str
    content: str
    reasoning: str = ""
    ref: MessageRef = field(default_factory=MessageRef)
    version: int = 1
    versions: int = 1
    calls: list[ToolCall] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """As the model is told it; an answer's calls come with their results, whatever these are."""
        if self.role == "tool":
            return []
        if self.role != "assistant":
            return [{"role": self.role, "content": self.content}]
        answer = {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}
        if not self.calls:
            # An answer of which nothing came is left out.
            return [answer] if self.content or self.reasoning else []
        calls = [call.message_part() for call in self.calls]
        return [{**answer, "tool_calls": calls}, *(call.result_message() for call in self.calls)]


@dataclass(slots=True)
class Conversation:
    """The messages of one session on the path that is shown, the current turn's included."""

    session: SessionRef
    said: list[Said] = field(default_factory=list)

    @classmethod
    def resumed(cls, session: SessionRef, rows: list[MessageRow]) -> "Conversation":
        said: list[Said] = []
        calls: list[ToolCall] = []  # of the last answer
        for row in rows:
            said.append(Said(row.role, row.content, row.reasoning, MessageRef(row.id), row.version, row.versions))
            if row.role == "assistant":
                calls = said[-1].calls = saved_calls(row.stats)
            elif row.role == "tool":
                said[-1].calls = [take_result(calls, row.stats, row.content)]
        return cls(session, said)

    @property
    def end(self) -> MessageRef:
        """What the next message follows."""
        return self.said[-1].ref if self.said else MessageRef(None)

    def ask(self, text: str) -> Said:
        """Add the user's message."""
        self.said.append(Said("user", text))
        return self.said[-1]

    def answer_call(self, call: ToolCall) -> Said:
        """Add the result of a call that was decided."""
        self.said.append(Said("tool", call.result, calls=[call]))
        return self.said[-1]

    @property
    def open_calls(self) -> list[ToolCall]:
        """The calls of the last answer, where nothing came after it yet."""
        return self.said[-1].calls if self.said and self.said[-1].role == "assistant" else []

    def cut(self, place: int) -> list[Said]:
        """Take the messages from `place` on off the path; gives them, so that they can be put back."""
        taken, self.said = self.said[place:], self.said[:place]
        return taken

    def hear(self, spans: tuple[Span, ...]) -> Said:
        """Add to the answer of the current turn, and give it."""
        if not self.said or self.said[-1].role != "assistant":
            self.said.append(Said("assistant", ""))
        answer = self.said[-1]
        for span in spans:
            if span.kind == "text":
                answer.content += span.text
            elif span.kind == "reasoning":
                answer.reasoning += span.text
        return answer

    def messages(self) -> list[Message]:
        """What the next prompt is rendered from."""
        said = [message for each in self.said for message in each.messages()]
        return [{"role": "system", "content": self.session.system}, *said] if self.session.system else said

    def toolbox(self, wall: Callable[[], datetime]) -> Toolbox | None:
        """The tools of this chat; None while they are off."""
        chosen = self.session.options.get("tools")
        if not isinstance(chosen, dict):
            return None
        folder = chosen.get("folder")
        return Toolbox(Path(folder) if isinstance(folder, str) else None, wall)

    def question(self, own: Sampling, toolbox: Toolbox | None = None, logprobs: int | None = None) -> Question:
        """What is asked next: the messages, under the session's own settings where it has some, else the model's."""
        options = {name: value for name, value in self.session.options.items() if name != "tools"}
        apart = {name: options.pop(name) for name in ("thinking", "max_tokens", "seed") if name in options}
        tools = toolbox.shown if toolbox else ()
        return Question(self.messages(), replace(own, **options), tools=tools, logprobs=logprobs, **apart)

    def prompts(self) -> list[str]:
        return [said.content for said in self.said if said.role == "user"]
