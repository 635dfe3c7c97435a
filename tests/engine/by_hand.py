"""A runner that a test turns by hand: what happens between two turns is the test's to say."""

from typing import Any

from engine.collect import Answer, Completion
from engine.config import EngineConfig
from engine.events import Event
from engine.models.load import LoadedModel
from engine.request import Request
from engine.row import Row
from engine.runner import Runner


class ByHand:
    """A loaded model under a runner with settings of its own.

    Attributes:
        events: everything told, in order. done: answers by request id.
    """

    def __init__(self, loaded: LoadedModel, **settings: Any) -> None:
        self.runner = Runner(loaded, EngineConfig(**settings))
        self.events: list[Event] = []
        self.done: dict[str, Completion] = {}
        self._loaded = loaded

    def add(self, request: Request) -> Row:
        answer = Answer()

        def take(event: Event) -> None:
            self.events.append(event)
            completion = answer.add(event)
            if completion is not None:
                assert request.id not in self.done, "a request ends once"
                self.done[request.id] = completion

        info = self._loaded.info
        row = Row(request, request.seed or 0, info.mode, self._loaded.chat, info.context, take)
        self.runner.add(row)
        return row

    def turn_until(self, *request_ids: str, most: int = 2000) -> None:
        """Turn until these have ended; until all have where none is named."""
        for _ in range(most):
            if all(name in self.done for name in request_ids) if request_ids else self.runner.idle:
                return
            self.runner.turn()
        raise AssertionError(f"not over after {most} turns")

    def of(self, kind: type, request_id: str) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind) and event.request_id == request_id]  # type: ignore[attr-defined]
