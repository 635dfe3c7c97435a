"""A row's events as pieces of an answer: for a stream piece by piece, or gathered until the row has finished."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.chat import ChatFormat
from engine.events import FinishEvent, Span, TokenEvent, TokenLogprob, Usage
from engine.handle import EngineHandle
from server.generation import Batch, Generation, failure
from server.pieces import CallArguments, CallBegin, Piece, Reasoning, Text
from server.tools import Tools

Reason = Literal["stop", "length", "tool_calls"]


class Answer:
    """Turns one row's events into pieces.

    A call that the model makes where it was offered no tools is text, tags included.

    Attributes:
        finish: the row's last event, once it has come.
    """

    def __init__(self, chat: ChatFormat, tools: Tools) -> None:
        self._tags = tuple(chat.decode([tag]) for tag in chat.tool_ids or ())
        self._in_tool = False
        self._calls = 0
        self.finish: FinishEvent | None = None

    def take(self, events: Iterable[TokenEvent | FinishEvent]) -> list[Piece]:
        """What these events add, neighbours of a kind joined."""
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, FinishEvent):
                self.finish = event
                if event.reason == "stop" and event.stop is None:
                    _add(pieces, Text(self._tag(False)))
                break
            for span in event.spans:
                self._span(pieces, span)
        return pieces

    @property
    def reason(self) -> Reason:
        """Why the answer ended, once it has."""
        assert self.finish is not None
        if self.finish.reason == "length":
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _span(self, pieces: list[Piece], span: Span) -> None:
        _add(pieces, Text(self._tag(span.kind == "tool")))
        _add(pieces, Reasoning(span.text) if span.kind == "reasoning" else Text(span.text))

    def _tag(self, tool: bool) -> str:
        if tool == self._in_tool:
            return ""
        self._in_tool = tool
        return self._tags[0 if tool else 1]


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append, or join to the last piece of the same kind; an empty text adds nothing."""
    if isinstance(piece, Text | Reasoning):
        last = pieces[-1] if pieces else None
        if not piece.text:
            return
        if isinstance(last, Text | Reasoning) and type(last) is type(piece):
            pieces[-1] = type(piece)(last.text + piece.text)
            return
    pieces.append(piece)


@dataclass(slots=True)
class Call:
    """A whole tool call; `arguments` is the JSON text of an object."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Whole:
    """One row's answer once it has finished.

    Attributes:
        parts: reasoning, text and calls in the order in which the model made them, neighbours of a kind joined.
    """

    reason: Reason
    finish: FinishEvent
    parts: list[Reasoning | Text | Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def usage(self) -> Usage:
        return self.finish.usage


def by_row(batch: Batch) -> Iterable[tuple[int, list[TokenEvent | FinishEvent]]]:
    """A batch's events, row by row."""
    rows: dict[int, list[TokenEvent | FinishEvent]] = {}
    for index, event in batch:
        rows.setdefault(index, []).append(event)
    return rows.items()


def logprobs_of(events: Iterable[TokenEvent | FinishEvent]) -> list[TokenLogprob]:
    return [token for event in events if isinstance(event, TokenEvent) for token in event.logprobs]


async def gather(engine: EngineHandle, generation: Generation, answers: Sequence[Answer]) -> list[Whole]:
    """All answers of a generation, whole.

    Raises:
        ApiError: where one of them failed. ClientGone: there is nobody to answer.
    """
    events: list[list[TokenEvent | FinishEvent]] = [[] for _ in answers]
    async for batch in generation.batches():
        for index, event in batch:
            events[index].append(event)
            error = failure(event, engine) if isinstance(event, FinishEvent) else None
            if error is not None:
                raise error
    return [_whole(answer, row) for answer, row in zip(answers, events, strict=True)]


def _whole(answer: Answer, events: Sequence[TokenEvent | FinishEvent]) -> Whole:
    pieces = answer.take(events)
    assert answer.finish is not None
    whole = Whole(answer.reason, answer.finish)
    calls: list[Call] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            calls.append(Call(piece.name))
            whole.parts.append(calls[-1])
        elif isinstance(piece, CallArguments):
            calls[piece.index].arguments += piece.text
        elif isinstance(piece, Text | Reasoning):
            whole.parts.append(piece)
    whole.logprobs = logprobs_of(events)
    return whole
