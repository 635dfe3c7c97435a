"""The Textual application: themes, size classes, and the life of what the screens share."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from textual import on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.notifications import SeverityLevel
from textual.screen import Screen

from mtplx_tui import paths
from mtplx_tui.bridge import Bridge
from mtplx_tui.driver import TerminalDriver
from mtplx_tui.glyphs import GlyphName, clean, glyph_set
from mtplx_tui.link import Link
from mtplx_tui.logs import LogTail
from mtplx_tui.pace import Pace
from mtplx_tui.recorder import Recorder
from mtplx_tui.rooms import CHAT, TABS
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.screens.palette import commands
from mtplx_tui.screens.room import MIN_HEIGHT, MIN_WIDTH, PANEL_WIDTH, Room
from mtplx_tui.server_settings import ServerSettings
from mtplx_tui.services import Chosen, Remote, Services
from mtplx_tui.store import Store
from mtplx_tui.switch import ModelSwitch
from mtplx_tui.themes import THEMES, default_theme
from mtplx_tui.tour import Tour
from mtplx_tui.tuning import shared_interpreter
from mtplx_tui.widgets.composer import Composer

if TYPE_CHECKING:
    from mtplx_tui.settings_page.desk import Desk

CATCH_UP_S = 0.02
"""Between two looks whether a terminal that is behind has caught up."""

UNFOLDED = {"auto": None, "folded": False, "open": True}
"""Whether thinking is drawn, by the setting of that name; None follows the stream."""


class MtplxApp(App[None]):
    """Chat with the engine behind `link`. The caller makes the link and the store, and closes them afterwards.

    Args:
        server_line: gives the server's address, or why there is none, in words; asked again now and then.
        clock: monotonic seconds, on the time base of the engine's events. wall: the time of day.
        switch: loads other models; None where the engine is not ours to change.
        remote: where the engine is, if elsewhere. notice: what the user is told at the start.
        settings: what the engine's server takes while it runs, if that is one of ours. chosen: for this start.
        tour: the first run's hints; None for none.
    """

    TITLE = "mtplx-tui"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-narrow"), (PANEL_WIDTH, "-wide")]  # noqa: RUF012  Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-low"), (MIN_HEIGHT, "-short"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "leave", show=False, priority=True),
        *(Binding(tab.key, f"room('{tab.name}')", tab.title, show=False, priority=True) for tab in TABS),
    ]

    def __init__(
        self,
        link: Link,
        store: Store,
        server_line: Callable[[], str],
        glyphs: GlyphName = "unicode",
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = datetime.now,
        switch: ModelSwitch | None = None,
        remote: Remote | None = None,
        notice: str | None = None,
        settings: ServerSettings | None = None,
        chosen: Chosen | None = None,
        tour: Tour | None = None,
    ) -> None:
        super().__init__(driver_class=TerminalDriver)
        self._settings = settings
        self._chosen = chosen or Chosen()
        self.services = Services(
            link,
            Bridge(link),
            Recorder(store),
            glyph_set(glyphs),
            clock,
            wall,
            server_line,
            store.notice or notice,
            LogTail(),
            switch,
            remote,
            tour,
            self._desk,
        )
        self._pace = Pace()
        self._next_beat: asyncio.TimerHandle | None = None
        self._tuned = ExitStack()
        self._held: ExitStack | None = None  # while nothing is drawn, because the terminal is behind
        self._missed = False
        for theme in THEMES:
            self.register_theme(theme)
        self._use("theme", self._chosen.theme)
        self.animation_level = "none"
        self.set_class(glyphs == "ascii", "-ascii")

    def on_mount(self) -> None:
        self.services.log.attach()
        self.chat = ChatScreen(self.services)
        self.chat.unfold = UNFOLDED[self._chosen.thinking]
        self.install_screen(self.chat, CHAT)
        self.push_screen(CHAT)
        self.call_after_refresh(lambda: self._tuned.enter_context(shared_interpreter()))
        self.call_after_refresh(self._beat)

    def on_unmount(self) -> None:
        if self._next_beat is not None:
            self._next_beat.cancel()
        self._tuned.close()
        self.chat.talk.stop()
        self.services.recorder.close()
        self.services.bridge.close()
        self.services.log.detach()

    def action_room(self, name: str) -> None:
        """Enter a room. What is open above one must be closed first."""
        if self.services.tour is not None and name != CHAT:
            self.services.tour.done("rooms")
        if isinstance(self.screen, Room) and name != self.screen.NAME:
            make = next(tab.make for tab in TABS if tab.name == name)
            if make is not None and not self.is_screen_installed(name):
                self.install_screen(make(self.services), name)
            self.switch_screen(name)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return commands(self, screen, super().get_system_commands(screen))

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, CommandPalette):
            mark = self.services.glyphs.ellipsis
            self.push_screen(CommandPalette(id="--command-palette", placeholder=f"Search for commands{mark}"))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Say something beside what is shown; a later word takes its place, so no pile hides what one came to read.

        Some of it others wrote, a server's refusal for one: it is no markup, and can not drive the terminal.
        """
        self.call_later(self.clear_notifications)  # after one that is said but not yet taken in
        glyphs = self.services.glyphs
        super().notify(
            clean(message, glyphs), title=clean(title, glyphs), severity=severity, timeout=timeout, markup=False
        )

    @on(Composer.Submitted)
    def _sent(self) -> None:
        if self.services.tour is not None:
            self.services.tour.done("ask")

    def _desk(self) -> "Desk":
        from mtplx_tui.settings_page.desk import Desk, Screen

        screen = Screen(self._shown, lambda name, value: self.call_from_thread(self._use, name, value))
        here = self.services.remote is None
        return Desk(paths.settings_file(), self._settings, here, screen, self._chosen.kept, self._chosen.given)

    def _shown(self) -> dict[str, str]:
        """The settings of the display as they are; the palette may have changed the theme."""
        chosen = self._chosen
        theme = chosen.theme if self.theme == self._theme_of(chosen.theme) else self.theme
        return {"theme": theme, "thinking": chosen.thinking}

    def _use(self, name: str, value: str) -> None:
        """Draw with another setting of the display from now on."""
        if name == "theme":
            self._chosen = replace(self._chosen, theme=value)
            self.theme = self._theme_of(value)
        else:
            self._chosen = replace(self._chosen, thinking=value)
            self.chat.unfold = UNFOLDED[value]
            self.chat.transcript.unfold_by(self.chat.unfold)

    def _theme_of(self, name: str) -> str:
        return default_theme(self.console.color_system) if name == "auto" else name

    def _beat(self) -> None:
        """Take in what came, draw it, and come back: soon while something runs, 4 times a second while nothing does."""
        if self._held is None and self._behind:
            self._held = ExitStack()
            self._held.enter_context(self.batch_update())
            self._catch_up()
        pulled = self.services.bridge.pull()
        with self.batch_update():
            self.chat.hear(pulled)
            for screen in self.screen_stack:
                if isinstance(screen, Room):
                    screen.beat(pulled)
        busy = self.chat.talk.turn is not None or self.services.bridge.state.busy
        pause = self._pace.next(busy, time.thread_time())
        self._next_beat = asyncio.get_running_loop().call_later(pause, self.call_next, self._beat)

    @property
    def _behind(self) -> bool:
        return isinstance(self._driver, TerminalDriver) and self._driver.behind()

    def _catch_up(self) -> None:
        """Draw again once the terminal took all that was drawn: what is true by then, and nothing of in between."""
        if self._held is None:
            return
        if self._behind:
            asyncio.get_running_loop().call_later(CATCH_UP_S, self._catch_up)
            return
        self._held.close()
        self._held = None
        if self._missed:
            self._missed = False
            self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Note what Textual drops, the frame of a new layout for one, while nothing is drawn."""
        self._missed = self._missed or self._held is not None
        super()._display(screen, renderable)
