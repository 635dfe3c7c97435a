"""One question of ours at a server: how much of its answer has come, so that what was missed is told exactly once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.events import Event, Span, TokenEvent
from engine.handle import EventSink
from server.facts import AnswerFacts


@dataclass(slots=True, eq=False)
class Own:
    """A question that was asked here and has not ended.

    Text is counted in characters and marks, not in events: cut differently, it is the same.

    Attributes:
        ids, said: tokens, and characters and marks of their spans, that have been told.
        sent: whether the server is known to have it. cancelled: whether it was cancelled from here.
        held: events that wait until what was missed before them is known; None while nothing is missing.
        until: events of tokens up to this moment are in what was told already.
    """

    id: str
    sink: EventSink
    ids: int = 0
    said: int = 0
    sent: bool = False
    cancelled: bool = False
    held: list[Event] | None = None
    until: float | None = None

    def take(self, event: Event) -> bool:
        """Count an event; False where it was told already."""
        if not isinstance(event, TokenEvent):
            return True
        if event.ids and self.until is not None and event.at <= self.until:
            return False
        self.ids += len(event.ids)
        self.said += length(event.spans)
        return True

    def missing(self, answer: AnswerFacts, at: float) -> TokenEvent | None:
        """What of an answer has not been told; None where all has."""
        spans, ids = tuple(after(answer.spans, self.said)), answer.ids[self.ids :]
        return TokenEvent(self.id, at, ids, spans) if spans or ids else None


def length(spans: Iterable[Span]) -> int:
    """Characters in spans; a mark where a tool call opens counts as one."""
    return sum(len(span.text) + span.opens for span in spans)


def after(spans: Sequence[Span], told: int) -> Iterator[Span]:
    """The spans without their first `told` characters and marks."""
    for span in spans:
        size = length([span])
        if told == 0:
            yield span
        elif told < size:
            yield Span(span.kind, span.text[told - span.opens :])
            told = 0
        else:
            told -= size
