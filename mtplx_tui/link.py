"""What the screens need of an engine, wherever it runs: in this process, on another machine, behind another's API."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from engine.chat import Message
from engine.errors import BadRequestError, EngineError
from engine.handle import EngineHandle, EngineState, EventSink, ModelInfo
from engine.request import Request, Sampling
from server.journal import Journal

if TYPE_CHECKING:
    from mtplx_tui.sent import Sent
    from mtplx_tui.server_settings import LocalSettings


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

    def sent(self, request_id: str, start: int = 0) -> "Sent":
        """A request as the model got it, from token `start` of its prompt on. Slow.

        Raises EngineError where that is not known, with the reason.
        """

    def cancel(self, request_id: str) -> None:
        """End a request, whoever asked. Unknown ids are ignored."""

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        """Send every event of every request to `on_event`; the answer ends that when called."""


class LocalLink:
    """An engine behind an EngineHandle.

    Args:
        settings: those that its requests begin from; None leaves all to the model.

    Attributes:
        journal: what is known of its requests, of ours and of others.
    """

    def __init__(self, handle: EngineHandle, settings: "LocalSettings | None" = None) -> None:
        self._handle = handle
        self._settings = settings
        self.journal = Journal()
        handle.listen(self.journal.hear)

    @property
    def state(self) -> EngineState:
        return self._handle.state

    @property
    def model(self) -> ModelInfo:
        model = self._handle.model
        return model if self._settings is None else self._settings.applied(model)

    def ask(self, question: Question, on_event: EventSink) -> None:
        chat = self._handle.chat
        if question.tools and chat.tool_style is None:
            raise BadRequestError(f"{self.model.name} can not call tools; /tools off asks it without them.", "tools")
        prompt = chat.render(question.messages, thinking=question.thinking, tools=question.tools or None)
        request = Request(
            prompt=prompt,
            sampling=question.sampling or self.model.sampling,
            max_tokens=question.max_tokens,
            seed=question.seed,
            logprobs=question.logprobs,
            source=question.source,
            id=question.id,
        )
        if self._settings is not None:
            request = self._settings.completed(request, self.model.mode)
        self._handle.submit(request, on_event)
        self.journal.submitted([request])

    def count(self, text: str) -> int | None:
        try:
            return len(self._handle.chat.encode_as_text(text))
        except EngineError:
            return None

    def sent(self, request_id: str, start: int = 0) -> "Sent":
        from pydantic_core import to_json  # which no start of the program should wait for

        from mtplx_tui.sent import Sent
        from server.request_detail import chat_of, detail

        entry = self.journal.find(request_id)
        if entry is None:
            raise EngineError(f"Nothing is kept any more of request {request_id}: it ended too long ago.")
        return Sent.read(to_json(detail(entry, chat_of(self._handle), slice(start, None))))

    def cancel(self, request_id: str) -> None:
        self._handle.cancel(request_id)

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._handle.listen(on_event)
