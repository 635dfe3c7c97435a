"""Bench: how fast it is here, against mlx-lm and against earlier runs."""

from typing import ClassVar

from textual.binding import BindingType

from mtplx_tui import paths
from mtplx_tui.keys import WORKBENCH_KEYS, Key, bindings
from mtplx_tui.layout.spans import Line
from mtplx_tui.runs.bench_page import KINDS, BenchView, bench_page
from mtplx_tui.runs.history import results
from mtplx_tui.runs.job import Job
from mtplx_tui.screens.job_room import JobRoom
from mtplx_tui.services import Services


class BenchScreen(JobRoom):
    NAME = "bench"
    KEYS = (
        *WORKBENCH_KEYS,
        Key("left", "Left/Right", "kind(-1)", "kind", "which benchmark s starts"),
        Key("right", "", "kind(1)", None, ""),
        Key("s", "s", "start", "start", "run the benchmark that is named at the top"),
        Key("x", "x", "stop", "stop", "end the run; its figures are lost"),
        Key("up", "Up/Down", "choose(-1)", None, "choose a kept result"),
        Key("down", "", "choose(1)", None, ""),
        Key("b", "b", "base", "base", "compare the others of its kind with the chosen result"),
        Key("pageup", "PgUp/PgDn", "scroll(-1)", None, "through the chosen result"),
        Key("pagedown", "", "scroll(1)", None, ""),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]
    FIGURES = (
        ("speed", "decoding by kind of prompt and by depth, and mlx-lm on the same weights"),
        ("step", "where the time of a step goes"),
        ("context", "reading prompts of several lengths, and decoding behind them, against mlx-lm"),
        ("load", "several clients at once, our server and mlx-lm's by turns"),
        ("suite", "the four of them, one after another"),
        ("q1, q3", "a median is followed by its middle half; a change counts where the halves do not overlap"),
    )

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._view = BenchView(kept=tuple(results()))

    def action_start(self) -> None:
        model = self.services.model()
        chosen = ["--model", model.path] if model else []
        save = ["--save", str(paths.benchmarks_folder())]
        self.begin(lambda: Job(["bench", KINDS[self._view.kind], *chosen, *save]))

    def ended(self) -> None:
        self._view = self._view.with_results(results())

    def action_kind(self, by: int) -> None:
        self._view = self._view.to_kind(by)
        self.draw()

    def action_choose(self, by: int) -> None:
        self._view = self._view.choosing(by)
        self.draw()

    def action_base(self) -> None:
        self._view = self._view.with_base()
        self.draw()

    def action_scroll(self, by: int) -> None:
        self._view = self._view.scrolled(by * max(self._page.size.height // 2, 1))
        self.draw()

    def draw_page(self, width: int, height: int) -> list[Line]:
        return bench_page(self._view, self.job, width, height, self.services.glyphs)
