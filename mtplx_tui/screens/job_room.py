"""A room in which a measurement runs in a process of its own."""

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import ClassVar

from mtplx_tui.bridge import Pulled
from mtplx_tui.charts.numbers import seconds
from mtplx_tui.glyphs import one_line
from mtplx_tui.layout.spans import Line, wrap
from mtplx_tui.runs.job import Job, State
from mtplx_tui.screens.page_room import PageRoom
from mtplx_tui.services import Services

DRAW_S = 0.5
"""A measurement is not to be disturbed by the screen that shows it."""


class JobRoom(PageRoom):
    """Draws a page of lines from `job`, twice a second while it runs and once when it has ended."""

    FIGURES: ClassVar[tuple[tuple[str, str], ...]]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.job: Job | None = None
        self._drawn_at = 0.0
        self._drawn: object = None

    def draw_page(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def on_unmount(self) -> None:
        if self.job is not None:
            self.job.stop()

    def beat(self, pulled: Pulled) -> None:
        self.draw_top()
        state = self.job.state if self.job else None
        running = state == "running" and time.monotonic() - self._drawn_at >= DRAW_S
        if running or state != self._drawn:
            if state != self._drawn and state in ("done", "failed"):
                self.ended()
            self.draw()

    def ended(self) -> None:
        """The job has ended by itself."""

    def draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._drawn = self.job.state if self.job else None
        width, height = self._page.size
        self._page.show(self._elsewhere(width) or self.draw_page(width, height))

    def _elsewhere(self, width: int) -> list[Line]:
        """What stands here where the engine is on another machine."""
        remote = self.services.remote
        if remote is None:
            return []
        text = (
            f"{self.NAME} measures the machine that it runs on, and this engine is at "
            f"{one_line(remote.url, self.services.glyphs)}. Run mtplx-tui {self.NAME} there."
        )
        return [(), *wrap([(f" {text}", "muted")], width)]

    def subject(self) -> str:
        job = self.job
        if job is None:
            return ""
        command = takewhile(lambda argument: not argument.startswith("-"), job.arguments)
        return f"{' '.join(command)}: {job.state}, {seconds(job.seconds)}"

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return self.FIGURES

    def shows(self, state: State) -> bool:
        """Whether what is drawn is a job in this state."""
        return self._drawn == state

    def begin(self, make: Callable[[], Job]) -> None:
        """Start a measurement, unless one runs or the engine is busy with answers that would disturb it."""
        if self.services.remote is not None:
            self.notify("A measurement needs the engine's own machine; start it there.")
        elif self.job is not None and self.job.state == "running":
            self.notify("A measurement runs. x stops it.")
        elif self.services.bridge.state.busy:
            self.notify("The engine is answering; a measurement now would be worth nothing. Try again after it.",
                        severity="warning")  # fmt: skip
        else:
            self.job = make()
            self.draw()

    def action_stop(self) -> None:
        if self.job is None or self.job.state != "running":
            self.notify("Nothing runs.")
            return
        self.job.stop()
        self.draw()
