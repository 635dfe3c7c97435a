"""A row's events as the items of a response, and the response as it stands after each of them."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from engine.events import FinishEvent, TokenEvent
from engine.handle import EngineHandle
from server.answer import Answer
from server.errors import ApiError
from server.generation import failure
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Reasoning, Text
from server.responses_items import CustomCall, Event, FunctionCall, Item, Message, Status, Thought
from server.responses_request import ResponsePlan
from server.responses_shapes import response


class Output:
    """Makes one response. Streamed or whole, it is the same: a whole answer is what a stream would have ended with.

    Items come in the order in which the model made them. A call that the answer's end cuts short stays in the output,
    marked incomplete, but no event says that it is done: agents run a tool as soon as they hear that.
    """

    def __init__(self, plan: ResponsePlan, engine: EngineHandle) -> None:
        self._plan = plan
        self._engine = engine
        self._answer = Answer(engine.chat, plan.tools)
        self._items: list[dict[str, Any]] = []  # those that are finished
        self._open: Item | None = None

    def take(self, events: Iterable[TokenEvent | FinishEvent]) -> Iterator[Event]:
        """What these events change. Raises ApiError where the row failed."""
        for piece in self._answer.take(events):
            yield from self._piece(piece)
        finish = self._answer.finish
        error = None if finish is None else failure(finish, self._engine)
        if error is not None:
            raise error

    def end(self) -> Iterator[Event]:
        """The row has finished: the last item ends, and the response with it."""
        finish = self._answer.finish
        assert finish is not None
        cut = self._answer.reason == "length"
        if cut and isinstance(self._open, FunctionCall | CustomCall):
            self._items.append(self._open.shown("incomplete"))
        else:
            yield from self._close("incomplete" if cut else "completed")
        status = "incomplete" if cut else "completed"
        now = None if cut else int(time.time())
        final = response(self._plan.head, status, self._items, usage=finish.usage, completed_at=now)
        yield {"type": f"response.{status}", "response": final}

    def told(self, kind: str) -> Event:
        """The response as it is now, as an event of this kind."""
        return {"type": kind, "response": response(self._plan.head, "in_progress", self._shown("in_progress"))}

    def failed(self, error: ApiError) -> Event:
        """The response as it is when it fails."""
        final = response(self._plan.head, "failed", self._shown("incomplete"), error=error)
        return {"type": "response.failed", "response": final}

    def _piece(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Reasoning(text):
                yield from self._grow(Thought, text)
            case Text(text):
                yield from self._grow(Message, text)
            case CallBegin(name=flat):
                name = self._plan.box.client_name(flat)
                yield from self._close("completed")
                self._open = (CustomCall if name.custom else FunctionCall)(len(self._items), name)
                yield from self._open.begin()
            case CallArguments(text=text):
                assert self._open is not None
                yield from self._open.add(text)
            case CallEnd():
                yield from self._close("completed")

    def _grow(self, kind: type[Thought] | type[Message], text: str) -> Iterator[Event]:
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            self._open = kind(len(self._items))
            yield from self._open.begin()
        yield from self._open.add(text)

    def _close(self, status: Status) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is not None:
            yield from item.done(status)
            self._items.append(item.shown(status))

    def _shown(self, status: Status) -> list[dict[str, Any]]:
        return self._items if self._open is None else [*self._items, self._open.shown(status)]
