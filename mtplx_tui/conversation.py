"""The chat's own data: what was said, and how far the current turn is. No Textual here."""

from dataclasses import dataclass, field
from enum import Enum

from engine.chat import Message
from engine.events import Span
from mtplx_tui.recorder import SessionRef
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
    """One message. `content` and `reasoning` are exactly what was typed or generated."""

    role: str
    content: str
    reasoning: str = ""

    def message(self) -> Message:
        if self.role != "assistant":
            return {"role": self.role, "content": self.content}
        return {"role": "assistant", "content": self.content, "reasoning_content": self.reasoning}


@dataclass(slots=True)
class Conversation:
    """The messages of one session, the current turn's included."""

    session: SessionRef
    said: list[Said] = field(default_factory=list)

    @classmethod
    def resumed(cls, session: SessionRef, rows: list[MessageRow]) -> "Conversation":
        return cls(session, [Said(row.role, row.content, row.reasoning) for row in rows])

    def ask(self, text: str) -> None:
        """Add the user's message."""
        self.said.append(Said("user", text))

    def take_back(self) -> None:
        """Remove the last user message, which could not be sent."""
        self.said.pop()

    def hear(self, spans: tuple[Span, ...]) -> None:
        """Add to the answer of the current turn."""
        if not self.said or self.said[-1].role != "assistant":
            self.said.append(Said("assistant", ""))
        answer = self.said[-1]
        for span in spans:
            if span.kind == "text":
                answer.content += span.text
            elif span.kind == "reasoning":
                answer.reasoning += span.text

    def messages(self) -> list[Message]:
        """What the next prompt is rendered from. Answers of which nothing came are left out."""
        return [said.message() for said in self.said if said.role != "assistant" or said.content or said.reasoning]

    def prompts(self) -> list[str]:
        return [said.content for said in self.said if said.role == "user"]
