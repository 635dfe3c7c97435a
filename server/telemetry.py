"""One ear at the engine for all that look at it over HTTP: the journal, the metrics and the streams of events."""

from collections.abc import Callable

from engine.events import Event
from engine.handle import EngineHandle
from server.event_hub import Hub
from server.journal import Journal
from server.metrics import Metrics


class Telemetry:
    """Hears every event of an engine between `open` and `close`, on that engine's thread, in microseconds each.

    Args:
        journal: one that hears the engine already, and longer than the server runs; else there is one of its own.
    """

    def __init__(self, engine: EngineHandle, journal: Journal | None = None) -> None:
        self._own = journal is None
        self.journal = Journal() if journal is None else journal
        self.metrics = Metrics(engine, self.journal)
        self.hub = Hub()
        self._engine = engine
        self._unlisten: Callable[[], None] = lambda: None

    def open(self) -> None:
        self.hub = Hub()  # the one before was closed with the server
        self._unlisten = self._engine.listen(self._hear)

    def close(self) -> None:
        self._unlisten()

    def _hear(self, event: Event) -> None:
        if self._own:
            self.journal.hear(event)
        self.metrics.hear(event, self.journal.find(getattr(event, "request_id", "")))
        self.hub.hear(event)
