"""Tune: which depth is fastest for this model on this machine."""

from typing import ClassVar

from textual.binding import BindingType

from mtplx_tui.keys import WORKBENCH_KEYS, Key, bindings
from mtplx_tui.layout.spans import Line
from mtplx_tui.runs.job import Job
from mtplx_tui.runs.tune_page import tune_page
from mtplx_tui.screens.job_room import JobRoom


class TuneScreen(JobRoom):
    NAME = "tune"
    KEYS = (
        *WORKBENCH_KEYS,
        Key("s", "s", "start(False)", "start", "measure plain decoding and each depth; a kept result is shown at once"),
        Key("r", "r", "start(True)", "retune", "measure even where a result is kept already"),
        Key("x", "x", "stop", "stop", "end the measurement; nothing is saved"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]
    FIGURES = (
        ("depth", "drafts a step; 0 is plain decoding"),
        ("tok/s", "median over the rounds, with the least and the most; the bar starts at 0"),
        ("accepted", "drafts that held, of those that were judged"),
        ("text", "same where every greedy answer is plain decoding's, token for token"),
        ("kept", "a depth is kept if it beats plain decoding by more than the rounds differ; auto starts from it"),
    )

    def arguments(self, again: bool) -> list[str]:
        """The command line of a measurement of the model that is loaded here."""
        model = self.services.model()
        return ["tune", *(["--model", model.path] if model else []), *(["--retune"] if again else [])]

    def action_start(self, again: bool) -> None:
        self.begin(lambda: Job(self.arguments(again)))

    def draw_page(self, width: int, height: int) -> list[Line]:
        return tune_page(self.job, self.services.model(), width, height, self.services.glyphs)
