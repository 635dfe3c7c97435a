"""The dashboard: is it fast, why, and who asks for what."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from engine.errors import EngineError
from mtplx_tui import paths
from mtplx_tui.bridge import Pulled
from mtplx_tui.dashboard.detail import TOKENS_SHOWN, detail, sent_lines, unknown
from mtplx_tui.dashboard.export import export
from mtplx_tui.dashboard.page import page
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import one_line
from mtplx_tui.keys import WORKBENCH_KEYS, Key, bindings
from mtplx_tui.layout.spans import Line
from mtplx_tui.machine import look
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.screens.page_room import PageRoom
from mtplx_tui.services import Services
from mtplx_tui.state import BINS_KEPT, STEPS_KEPT, RequestRow

if TYPE_CHECKING:
    from mtplx_tui.remote.figures import ServerFigures

DRAW_S = 0.25
"""Between two drawings while something runs: nobody reads figures faster."""
MACHINE_S = 2.0


class DashboardScreen(PageRoom):
    NAME = "dashboard"
    KEYS = (
        *WORKBENCH_KEYS,
        Key("space", "Space", "pause", "pause", "hold the picture, to step through the last 2,000 steps"),
        Key("left", "Left/Right", "step(1)", None, "while paused: the step before, the step after"),
        Key("right", "", "step(-1)", None, ""),
        Key("up", "Up/Down", "choose(-1)", None, "choose a request"),
        Key("down", "", "choose(1)", None, ""),
        Key(
            "enter",
            "Enter",
            "detail",
            "detail",
            "what is known of the chosen request, and what the model got, by token",
        ),
        Key("x", "x", "cancel", "cancel", "cancel the chosen request, whoever asked"),
        Key("c", "c", "conditional", None, "acceptance up to a depth, or at it given that those before held"),
        Key("l", "l", "log", "log", "the program's own log"),
        Key("e", "e", "export", "export", "write steps, figures and this picture as CSV, JSON and SVG"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._drawn_at = -DRAW_S
        self._machine = look()
        self._looked_at = time.monotonic()
        self._chosen = 0
        self._conditional = False
        self._held: View | None = None
        self._figures: ServerFigures | None = None
        self._stale = True

    def beat(self, pulled: Pulled) -> None:
        now = time.monotonic()
        self.draw_top()
        figures = self.services.remote.figures() if self.services.remote is not None else None
        self._stale = self._stale or bool(pulled.events) or figures != self._figures
        self._figures = figures
        if now - self._looked_at >= MACHINE_S and self._stale:
            self._machine, self._looked_at = look(), now
        if self._held is None and self._stale and now - self._drawn_at >= DRAW_S:
            self.draw()

    def subject(self) -> str:
        return "paused: Space goes on" if self._held is not None else ""

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return FIGURES

    def _view(self) -> View:
        services = self.services
        snapshot = services.bridge.state.snapshot(services.clock(), STEPS_KEPT, BINS_KEPT)
        return View(
            snapshot, snapshot.steps, services.model(), self._machine, services.server_line(),
            tuple(services.log.lines), None, self._conditional, self._chosen,
            services.remote is not None, self._figures,
        )  # fmt: skip

    def draw(self) -> None:
        view = self._held or self._view()
        self._drawn_at, self._stale = time.monotonic(), False
        self._page.show(page(view, *self._page.size, self.services.glyphs))
        self.draw_top()

    def action_pause(self) -> None:
        self._held = None if self._held is not None else replace(self._view(), place=0)
        self.draw()

    def action_step(self, by: int) -> None:
        if self._held is None or not self._held.steps:
            self.notify("Space pauses; then Left and Right step.")
            return
        place = min(max((self._held.place or 0) + by, 0), len(self._held.steps) - 1)
        self._held = replace(self._held, place=place)
        self.draw()

    def action_choose(self, by: int) -> None:
        rows = (self._held or self._view()).rows
        self._chosen = min(max(self._chosen + by, 0), max(len(rows) - 1, 0))
        if self._held is not None:
            self._held = replace(self._held, chosen=self._chosen)
        self.draw()

    def action_conditional(self) -> None:
        self._conditional = not self._conditional
        if self._held is not None:
            self._held = replace(self._held, conditional=self._conditional)
        self.draw()

    def action_cancel(self) -> None:
        row = self._view().chosen_row
        if row is None or row.phase == "done":
            self.notify("The chosen request has ended.")
            return
        self.services.link.cancel(row.id)
        self.notify(f"Cancelled {row.id}.")

    def action_detail(self) -> None:
        row = (self._held or self._view()).chosen_row
        if row is not None:
            self.run_worker(self._detail(row), group="detail", exclusive=True)

    async def _detail(self, row: RequestRow) -> None:
        glyphs = self.services.glyphs

        def told() -> list[Line]:
            try:
                sent = self.services.link.sent(row.id, max(row.prompt_tokens - TOKENS_SHOWN, 0))
            except EngineError as error:
                return unknown(str(error), glyphs)
            return sent_lines(sent, glyphs)

        lines = [*detail(row, glyphs), (), *await asyncio.to_thread(told)]
        if self.is_current:
            self.app.push_screen(PageScreen(glyphs, f"request {one_line(row.id, glyphs)}", lines))

    def action_log(self) -> None:
        lines: list[Line] = [((one_line(text, self.services.glyphs), ""),) for text in self.services.log.lines]
        self.app.push_screen(PageScreen(self.services.glyphs, f"log {paths.log_file()}", lines, at_end=True))

    def action_export(self) -> None:
        try:
            folder = export(self._held or self._view(), self.app.export_screenshot(), self.services.wall())
        except OSError as error:
            self.notify(f"Not written: {error}", severity="error")
            return
        self.notify(f"Written to {folder}")


FIGURES = (
    ("out", "tokens that a step gave: the drafts that held, and one of the model's own"),
    ("d1..d8", "the draft at that depth: held, or refused; blank where it was not judged or not drafted"),
    ("ms", "how long each step took, against the slowest one shown"),
    ("up to d", "steps in which all drafts of 1..d held, of those that drafted so deep"),
    ("at d", "steps in which the draft at d held, of those in which all before it did"),
    ("needed", "the break-even: share of steps that must hold up to d for that depth to be worth its time over d-1, "
               "from what steps of both took here; the line in a bar"),
    ("tok/s", "tokens of all requests a second, in half-second bins"),
    ("cached", "prompt tokens that were not read again, of the requests that are listed"),
    ("pressure", "what the system itself says of its memory"),
    ("TTFT", "time to first token of the requests that are listed"),
    ("prefill", "prompt tokens read a second, without those from the cache; median of the requests that are listed"),
)  # fmt: skip
