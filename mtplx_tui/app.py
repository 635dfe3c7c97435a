"""The Textual application: themes, size classes, and the life of what the screens share."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from engine.handle import EngineHandle
from mtplx_tui.bridge import Bridge
from mtplx_tui.glyphs import GlyphName, glyph_set
from mtplx_tui.recorder import Recorder
from mtplx_tui.screens.chat import MIN_HEIGHT, MIN_WIDTH, PANEL_WIDTH, ChatScreen
from mtplx_tui.services import Services
from mtplx_tui.store import Store
from mtplx_tui.themes import THEMES, default_theme
from mtplx_tui.tuning import shared_interpreter


class MtplxApp(App[None]):
    """Chat with the engine behind `handle`. The caller makes the handle and the store, and closes them afterwards.

    Args:
        server_line: gives the server's address, or why there is none, in words; asked again now and then.
        clock: monotonic seconds, on the time base of the engine's events. wall: the time of day.
    """

    TITLE = "mtplx-tui"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-narrow"), (PANEL_WIDTH, "-wide")]  # noqa: RUF012  Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-low"), (MIN_HEIGHT, "-short"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "leave", show=False, priority=True)]

    def __init__(
        self,
        handle: EngineHandle,
        store: Store,
        server_line: Callable[[], str],
        glyphs: GlyphName = "unicode",
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = datetime.now,
    ) -> None:
        super().__init__()
        self.services = Services(handle, Bridge(handle), Recorder(store), glyph_set(glyphs), clock, wall, server_line)
        self._notice = store.notice
        self._chat: ChatScreen | None = None
        self._tuned = ExitStack()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = default_theme(self.console.color_system)
        self.animation_level = "none"
        self.set_class(glyphs == "ascii", "-ascii")

    def on_mount(self) -> None:
        self._chat = ChatScreen(self.services, self._notice)
        self.push_screen(self._chat)
        self.call_after_refresh(lambda: self._tuned.enter_context(shared_interpreter()))

    def on_unmount(self) -> None:
        self._tuned.close()
        if self._chat is not None:
            self._chat.talk.stop()
        self.services.recorder.close()
        self.services.bridge.close()
