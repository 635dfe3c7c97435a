"""The Textual application: themes, size classes, and the life of what the screens share."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from mtplx_tui.bridge import Bridge
from mtplx_tui.glyphs import GlyphName, glyph_set
from mtplx_tui.link import Link
from mtplx_tui.logs import LogTail
from mtplx_tui.pace import Pace
from mtplx_tui.recorder import Recorder
from mtplx_tui.rooms import CHAT, TABS
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.screens.room import MIN_HEIGHT, MIN_WIDTH, PANEL_WIDTH, Room
from mtplx_tui.services import Remote, Services
from mtplx_tui.store import Store
from mtplx_tui.switch import ModelSwitch
from mtplx_tui.themes import THEMES, default_theme
from mtplx_tui.tuning import shared_interpreter


class MtplxApp(App[None]):
    """Chat with the engine behind `link`. The caller makes the link and the store, and closes them afterwards.

    Args:
        server_line: gives the server's address, or why there is none, in words; asked again now and then.
        clock: monotonic seconds, on the time base of the engine's events. wall: the time of day.
        switch: loads other models; None where the engine is not ours to change.
        remote: where the engine is, if elsewhere. notice: what the user is told at the start.
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
    ) -> None:
        super().__init__()
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
        )
        self._pace = Pace()
        self._next_beat: asyncio.TimerHandle | None = None
        self._tuned = ExitStack()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = default_theme(self.console.color_system)
        self.animation_level = "none"
        self.set_class(glyphs == "ascii", "-ascii")

    def on_mount(self) -> None:
        self.services.log.attach()
        self.chat = ChatScreen(self.services)
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
        if isinstance(self.screen, Room) and name != self.screen.NAME:
            make = next(tab.make for tab in TABS if tab.name == name)
            if make is not None and not self.is_screen_installed(name):
                self.install_screen(make(self.services), name)
            self.switch_screen(name)

    def _beat(self) -> None:
        """Take in what came, draw it, and come back: soon while something runs, 4 times a second while nothing does."""
        pulled = self.services.bridge.pull()
        with self.batch_update():
            self.chat.hear(pulled)
            for screen in self.screen_stack:
                if isinstance(screen, Room):
                    screen.beat(pulled)
        busy = self.chat.talk.turn is not None or self.services.bridge.state.busy
        pause = self._pace.next(busy, time.thread_time())
        self._next_beat = asyncio.get_running_loop().call_later(pause, self.call_next, self._beat)
