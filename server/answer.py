"""A row's events as pieces of an answer: for a stream piece by piece, or gathered until the row has finished."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from engine.chat import ChatFormat
from engine.events import FinishEvent, Span, SpanKind, TokenEvent, TokenLogprob, Usage
from engine.handle import EngineHandle
from server.generation import Batch, Generation, failure
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Reasoning, Text
from server.tool_calls import CallReader
from server.tools import Tools

Reason = Literal["stop", "length", "tool_calls"]


class Answer:
    """Turns one row's events into pieces.

    A call of what may not be called is text, tags included; see `CallReader` for what else a call may come to.

    Attributes:
        finish: the row's last event, once it has come.
    """

    def __init__(self, chat: ChatFormat, tools: Tools) -> None:
        self._reader = CallReader(chat.tool_style, tools.named())
        self.finish: FinishEvent | None = None

    def take(self, events: Iterable[TokenEvent | FinishEvent]) -> list[Piece]:
        """What these events add, neighbours of a kind joined."""
        spans: list[Span] = []
        for event in events:
            if isinstance(event, FinishEvent):
                self.finish = event
                break
            spans += event.spans
        pieces = [piece for span in _runs(spans) for piece in self._span(span)]
        if self.finish is not None:
            pieces += self._reader.stop() if self.finish.reason == "stop" else self._reader.cut_off()
        return joined(pieces)

    @property
    def reason(self) -> Reason:
        """Why the answer ended, once it has."""
        assert self.finish is not None
        if self.finish.reason == "length":
            return "length"
        return "tool_calls" if self._reader.calls else "stop"

    @property
    def cut(self) -> str:
        """The text of a call that max_tokens cut short, where its beginning was among the pieces; else empty."""
        return self._reader.cut

    def _span(self, span: Span) -> list[Piece]:
        reader = self._reader
        if span.kind == "tool":
            opened = reader.open() if span.opens or not reader.inside else []
            return opened + reader.feed(span.text)
        closed = reader.close() if reader.inside else []
        if span.kind == "reasoning":
            return [*closed, *reader.stop(), Reasoning(span.text)]
        return closed + reader.feed(span.text)


def _runs(spans: Sequence[Span]) -> Iterable[Span]:
    """The same spans with neighbours of a kind made one: what follows costs as much for a letter as for a line."""
    for (kind, _), run in groupby(spans, key=_opening()):
        first, *more = run
        yield Span(kind, "".join([first.text, *(span.text for span in more)]), first.opens) if more else first


def _opening() -> Callable[[Span], tuple[SpanKind, int]]:
    """A key for spans in order, that changes with their kind and at each that opens something."""
    opened = 0

    def key(span: Span) -> tuple[SpanKind, int]:
        nonlocal opened
        opened += span.opens
        return span.kind, opened

    return key


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces with neighbours of a kind made one; empty texts are left out."""
    result: list[Piece] = []
    for (kind, _), group in groupby((piece for piece in pieces if not _says_nothing(piece)), key=_kind):
        if kind in (CallBegin, CallEnd):
            result += group
            continue
        first, *more = (piece for piece in group if isinstance(piece, _Said))
        result.append(replace(first, text="".join([first.text, *(piece.text for piece in more)])) if more else first)
    return result


_Said = Text | Reasoning | CallArguments


def _says_nothing(piece: Piece) -> bool:
    return isinstance(piece, _Said) and not piece.text


def _kind(piece: Piece) -> tuple[type[Piece], int]:
    return type(piece), piece.index if isinstance(piece, CallArguments) else 0


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


def tokens_of(events: Iterable[TokenEvent | FinishEvent]) -> int:
    """How many tokens these events deliver."""
    return sum(len(event.ids) for event in events if isinstance(event, TokenEvent))


async def gather(engine: EngineHandle, generation: Generation, answers: Sequence[Answer]) -> list[Whole]:
    """All answers of a generation, whole.

    Raises:
        ApiError: where one of them failed.
    """
    pieces: list[list[Piece]] = [[] for _ in answers]
    logprobs: list[list[TokenLogprob]] = [[] for _ in answers]
    async for batch in generation.batches():
        for index, events in by_row(batch):
            pieces[index] += answers[index].take(events)
            logprobs[index] += logprobs_of(events)
            finish = answers[index].finish
            error = None if finish is None else failure(finish, engine)
            if error is not None:
                raise error
    return [_whole(*row) for row in zip(answers, pieces, logprobs, strict=True)]


def _whole(answer: Answer, pieces: Sequence[Piece], logprobs: list[TokenLogprob]) -> Whole:
    assert answer.finish is not None
    whole = Whole(answer.reason, answer.finish, logprobs=logprobs)
    ended = {piece.index for piece in pieces if isinstance(piece, CallEnd)}
    calls: list[Call] = []
    for piece in joined([*(piece for piece in pieces if _belongs(piece, ended)), Text(answer.cut)]):
        if isinstance(piece, CallBegin):
            calls.append(Call(piece.name))
            whole.parts.append(calls[-1])
        elif isinstance(piece, CallArguments):
            calls[piece.index].arguments += piece.text
        elif isinstance(piece, Text | Reasoning):
            whole.parts.append(piece)
    return whole


def _belongs(piece: Piece, ended: set[int]) -> bool:
    """Whether it is part of a whole answer: half a call is not, but text."""
    return not isinstance(piece, CallBegin | CallArguments) or piece.index in ended
