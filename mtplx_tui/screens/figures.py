"""Draws the figures around the chat: the top line, the status line and the side panel."""

import time
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.handle import ModelInfo
from mtplx_tui.conversation import Phase
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line
from mtplx_tui.services import Services
from mtplx_tui.talk import Talk
from mtplx_tui.widgets.lines import Lines
from mtplx_tui.widgets.panel import SERIES_BINS, Surroundings, panel_lines
from mtplx_tui.widgets.status import status_line
from mtplx_tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from mtplx_tui.screens.room import Room

FIGURES_S = 0.3
"""Between two updates while something runs. Text comes more often; nobody reads figures faster."""


class Figures:
    """Holds the widgets that it draws into. All figures of one drawing come from one snapshot."""

    def __init__(self, screen: "Room", services: Services, talk: Talk) -> None:
        self._services = services
        self._talk = talk
        self._screen = screen
        self._status = screen.query_one("#status", Lines)
        self._panel = screen.query_one("#panel", Lines)
        self._transcript = screen.query_one(Transcript)
        self._drawn_at = 0.0
        self._drawn: object = None
        self._problem: str | None = None
        self._stale = True

    def update(self, news: bool, ended: bool) -> None:
        """Draw if it is time to: now and then while something runs, and at once when a standing fact changed."""
        services = self._services
        recorder = services.recorder
        facts = (services.link.state, services.bridge.state.stage, services.server_line(), recorder.problem,
                 recorder.saved_at, self._talk.phase, self._transcript.following)  # fmt: skip
        if recorder.problem != self._problem:
            self._problem = recorder.problem
            if recorder.problem is not None:  # a narrow screen has no panel, in which it would stand
                self._screen.notify(recorder.problem, severity="error")
        self._stale = self._stale or news or services.bridge.state.busy
        if ended or facts != self._drawn or (self._stale and time.monotonic() - self._drawn_at >= FIGURES_S):
            self._drawn = facts
            self.draw()

    def draw(self) -> None:
        services = self._services
        self._drawn_at = time.monotonic()
        self._stale = False
        snapshot = services.bridge.state.snapshot(services.clock(), max(self._panel.size.height, 1), SERIES_BINS)
        model = services.model()
        glyphs = services.glyphs
        self._screen.draw_top()
        self._status.show([status_line(snapshot, model, self._hint(), self._status.size.width, glyphs)])
        if self._panel.size.width:
            around = Surroundings(model, services.server_line(), self._saved(), services.recorder.problem)
            self._panel.show(panel_lines(snapshot, around, *self._panel.size, glyphs))

    def failure(self) -> str | None:
        """Why no model runs, where none does and none will."""
        if self._services.bridge.state.failure is not None:
            return self._services.bridge.state.failure
        if self._services.link.state != "failed":
            return None
        try:
            self._services.link.model  # noqa: B018  the load's error is what is asked for
        except EngineError as error:
            return str(error)
        return None

    def note(self) -> Line:
        """The model, and what the chat or the engine does, for the right end of the tabs."""
        word = self.state_word()
        name = one_line(self._model_name(self._services.model()), self._services.glyphs)
        role = "error strong" if word in ("FAILED", "CLOSED") else "accent strong"
        return ((name, "muted"), ("  ", ""), (word, role))

    def state_word(self) -> str:
        """What the engine does, in one word or two."""
        state = self._services.link.state
        phase = self._talk.phase
        if state in ("failed", "closed"):
            return state.upper()
        if state == "loading" and phase in (Phase.IDLE, Phase.LOADING):
            return Phase.LOADING.value
        others = self._services.bridge.state.active
        if phase is Phase.IDLE and others:
            return f"{Phase.IDLE.value} +{others} outside"
        return phase.value

    def _model_name(self, model: ModelInfo | None) -> str:
        if model is not None:
            return model.name
        return self._services.bridge.state.stage if self._services.link.state == "loading" else ""

    def _hint(self) -> Line:
        if self._services.recorder.problem is not None:
            return (("not saved", "warn strong"),)
        if not self._transcript.following:
            return ((f"{self._services.glyphs.down} ^End follows", "accent"),)
        return ()

    def _saved(self) -> str:
        saved_at = self._services.recorder.saved_at
        session = self._talk.conversation.session.id
        if saved_at is None or session is None:
            return ""
        return f"chat {session} {self._services.glyphs.dot} saved"


def chat_figures(glyphs: Glyphs) -> list[tuple[str, str]]:
    """Each figure on the chat screen, with what it means and over what it is taken."""
    return [
        ("tok/s", "tokens of this answer a second, over the last 2 s; when it is done, over all after the first"),
        ("/step", "tokens that a verify step gave, mean over this answer: accepted drafts and one of the model's own"),
        ("acc", "drafts accepted, of those that were judged; drafts behind a refused one are not judged"),
        ("ctx", "tokens in this chat's cache, of those the model can hold"),
        ("TTFT", "time to first token: from Enter to the first token of the answer"),
        (f"{glyphs.accepted} {glyphs.refused} {glyphs.unused} {glyphs.bonus}",
         "one verify step: accepted, first refused (the model's own token took its place), not judged, bonus token"),
        (f"[was{glyphs.arrow}is]", "the refused draft and the token that took its place"),
        ("d1, d2", "how often drafts held up to that depth (1..d), and at it, given that those before held (at d)"),
    ]  # fmt: skip
