"""Everything that the dashboard draws, at one moment."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.events import StepEvent
from engine.handle import ModelInfo
from mtplx_tui.machine import Machine
from mtplx_tui.state import RequestRow, Snapshot

if TYPE_CHECKING:
    from mtplx_tui.remote.figures import ServerFigures


@dataclass(frozen=True, slots=True)
class View:
    """The figures, and what the user has chosen.

    Attributes:
        steps: of the watched request, newest first. place: index of the chosen step while paused; None while it runs.
        conditional: acceptance at a depth, given that those before held, instead of up to it.
        chosen: index into `rows` of the chosen request. log: its last lines, newest last.
        elsewhere: whether the engine is on another machine than `machine`.
        figures: what the metrics of another's server tell.
    """

    snapshot: Snapshot
    steps: tuple[StepEvent, ...]
    model: ModelInfo | None
    machine: Machine
    server: str
    log: tuple[str, ...]
    place: int | None = None
    conditional: bool = False
    chosen: int = 0
    elsewhere: bool = False
    figures: "ServerFigures | None" = None

    @property
    def paused(self) -> bool:
        return self.place is not None

    @property
    def rows(self) -> tuple[RequestRow, ...]:
        """The requests as listed: those that are here, then those that ended last."""
        return (*self.snapshot.active, *self.snapshot.done)

    @property
    def load(self) -> tuple[int, int]:
        """How many requests run and wait: of the whole server where its metrics tell, else those whose events came."""
        told, snapshot = self.figures, self.snapshot
        running = snapshot.running if told is None or told.running is None else told.running
        waiting = snapshot.waiting if told is None or told.waiting is None else told.waiting
        return running, waiting

    @property
    def chosen_row(self) -> RequestRow | None:
        return self.rows[min(self.chosen, len(self.rows) - 1)] if self.rows else None
