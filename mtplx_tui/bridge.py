"""Between the engine's thread and the screens: events are appended there and pulled here.

The engine never calls into Textual. Called per token it costs the engine 61 % of its speed, and a stalled terminal
would stall the engine with it; an append to a deque costs nothing that can be measured.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.events import Event, FinishEvent, Span, StepEvent, TokenEvent
from mtplx_tui.link import Link
from mtplx_tui.state import EngineState


@dataclass(frozen=True, slots=True)
class Pulled:
    """What came since the last pull, of the followed request: its new spans, its end if it ended.

    `told` are its steps and tokens as such.
    """

    events: int
    spans: tuple[Span, ...]
    finish: FinishEvent | None
    told: tuple[StepEvent | TokenEvent, ...] = ()


NOTHING = Pulled(0, (), None)


class Bridge:
    """Pulls events on the screens' own time. All methods but the engine's append belong to the UI thread."""

    def __init__(self, link: Link) -> None:
        self.state = EngineState()
        self._events: deque[Event] = deque()
        self._followed: str | None = None
        self._unlisten: Callable[[], None] = link.listen(self._events.append)

    def follow(self, request_id: str) -> None:
        """Collect this request's text from now on; call it before the request is submitted.

        Late events of an earlier request, a cancelled one say, are then no longer delivered.
        """
        self._followed = request_id
        self.state.own(request_id)

    def pull(self) -> Pulled:
        """Take in all that has come; costs next to nothing when nothing has."""
        if not self._events:
            return NOTHING
        spans: list[Span] = []
        told: list[StepEvent | TokenEvent] = []
        finish: FinishEvent | None = None
        count = len(self._events)  # what comes while this runs is left for the next pull
        for _ in range(count):
            event = self._events.popleft()
            self.state.apply(event)
            if isinstance(event, StepEvent | TokenEvent):
                if event.request_id == self._followed:
                    told.append(event)
                    spans += event.spans if isinstance(event, TokenEvent) else ()
            elif isinstance(event, FinishEvent) and event.request_id == self._followed:
                finish = event
        return Pulled(count, tuple(spans), finish, tuple(told))

    def close(self) -> None:
        self._unlisten()
