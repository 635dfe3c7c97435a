"""The chat's own data: what was said, and how far the current turn is. No Textual here."""

from dataclasses import dataclass, field, replace
from enum import Enum

from engine.chat import Message
from engine.events import Span
from engine.request import Sampling
from mtplx_tui.link import Question
from mtplx_tui.recorder import MessageRef, SessionRef
from mtplx_tui.store import MessageRow


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
    """

    role: str
    content: str
    reasoning: str = ""
    ref: MessageRef = field(default_factory=MessageRef)
    version: int = 1
    versions: int = 1

    def message(self) -> Message:
        if self.role != "assistant":
            return {"role": self.role, "content": self.content}
        return {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}


@dataclass(slots=True)
class Conversation:
    """The messages of one session on the path that is shown, the current turn's included."""

    session: SessionRef
    said: list[Said] = field(default_factory=list)

    @classmethod
    def resumed(cls, session: SessionRef, rows: list[MessageRow]) -> "Conversation":
        said = [
            Said(row.role, row.content, row.reasoning, MessageRef(row.id), row.version, row.versions) for row in rows
        ]
        return cls(session, said)

    @property
    def end(self) -> MessageRef:
        """What the next message follows."""
        return self.said[-1].ref if self.said else MessageRef(None)

    def ask(self, text: str) -> Said:
        """Add the user's message."""
        self.said.append(Said("user", text))
        return self.said[-1]

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
        """What the next prompt is rendered from. Answers of which nothing came are left out."""
        said = [each.message() for each in self.said if each.role != "assistant" or each.content or each.reasoning]
        return [{"role": "system", "content": self.session.system}, *said] if self.session.system else said

    def question(self, own: Sampling) -> Question:
        """What is asked next: the messages, under the session's own settings where it has some, else the model's."""
        options = dict(self.session.options)
        apart = {name: options.pop(name) for name in ("thinking", "max_tokens", "seed") if name in options}
        return Question(self.messages(), replace(own, **options), **apart)

    def prompts(self) -> list[str]:
        return [said.content for said in self.said if said.role == "user"]
