"""What the screens need of an engine, wherever it runs: in this process, on another machine, behind another's API."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.chat import Message
from engine.errors import EngineError
from engine.handle import EngineHandle, EngineState, EventSink, ModelInfo
from engine.request import Request, Sampling


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation to be continued.

    Attributes:
        sampling: None means the model's own. thinking: whether the model may think first.
        tools: what it may call, as the chat template takes them. max_tokens: None means what the context leaves.
        logprobs: how many alternatives to report beside each token's own; None for none.
    """

    messages: Sequence[Message]
    sampling: Sampling | None = None
    thinking: bool = True
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    seed: int | None = None
    logprobs: int | None = None
    source: str = "chat"
    id: str = field(default_factory=lambda: "r" + secrets.token_hex(8))


class Link(Protocol):
    """All methods may be called from any thread."""

    @property
    def state(self) -> EngineState: ...

    @property
    def model(self) -> ModelInfo:
        """Facts of the loaded model. Raises EngineError while there is none."""

    def ask(self, question: Question, on_event: EventSink) -> None:
        """Send a question; its events go to `on_event` and to all listeners. Slow: it renders and tokenises.

        Raises EngineError, as the engine's `submit` and its template do.
        """

    def count(self, text: str) -> int | None:
        """Tokens of a text; None where that can not be known here."""

    def cancel(self, request_id: str) -> None:
        """End a request, whoever asked. Unknown ids are ignored."""

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        """Send every event of every request to `on_event`; the answer ends that when called."""


class LocalLink:
    """An engine behind an EngineHandle."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle

    @property
    def state(self) -> EngineState:
        return self._handle.state

    @property
    def model(self) -> ModelInfo:
        return self._handle.model

    def ask(self, question: Question, on_event: EventSink) -> None:
        prompt = self._handle.chat.render(question.messages, thinking=question.thinking, tools=question.tools or None)
        request = Request(
            prompt=prompt,
            sampling=question.sampling or self.model.sampling,
            max_tokens=question.max_tokens,
            seed=question.seed,
            logprobs=question.logprobs,
            source=question.source,
            id=question.id,
        )
        self._handle.submit(request, on_event)

    def count(self, text: str) -> int | None:
        try:
            return len(self._handle.chat.encode_as_text(text))
        except EngineError:
            return None

    def cancel(self, request_id: str) -> None:
        self._handle.cancel(request_id)

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._handle.listen(on_event)
