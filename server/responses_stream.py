"""The stream of a response: numbered events, each with its `event:` line, up to one that says how it ended."""

from collections.abc import Iterator

from pydantic_core import to_json

from engine.handle import EngineHandle
from server.errors import ApiError
from server.generation import Batch
from server.responses_items import Event
from server.responses_output import Output
from server.responses_request import ResponsePlan


class ResponseFrames:
    """Writes one response as it is made."""

    def __init__(self, plan: ResponsePlan, engine: EngineHandle) -> None:
        self._output = Output(plan, engine)
        self._count = 0

    def begin(self) -> Iterator[bytes]:
        yield self._frame(self._output.told("response.created"))
        yield self._frame(self._output.told("response.in_progress"))

    def step(self, batch: Batch) -> Iterator[bytes]:
        yield from map(self._frame, self._output.take(event for _, event in batch))

    def silence(self) -> Iterator[bytes]:
        """A real event: Codex gives up on a stream that has only comments."""
        yield self._frame(self._output.told("response.in_progress"))

    def end(self) -> Iterator[bytes]:
        yield from map(self._frame, self._output.end())

    def fail(self, error: ApiError) -> Iterator[bytes]:
        yield self._frame(self._output.failed(error))

    def _frame(self, event: Event) -> bytes:
        number, self._count = self._count, self._count + 1
        return f"event: {event['type']}\ndata: ".encode() + to_json({**event, "sequence_number": number}) + b"\n\n"
