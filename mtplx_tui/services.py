"""What the screens share; made once by the app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.handle import ModelInfo
from mtplx_tui.bridge import Bridge
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.spans import Line
from mtplx_tui.link import Link
from mtplx_tui.logs import LogTail
from mtplx_tui.recorder import Recorder
from mtplx_tui.switch import ModelSwitch
from mtplx_tui.tour import Tour

if TYPE_CHECKING:
    from mtplx_tui.remote.figures import ServerFigures
    from mtplx_tui.settings_page.desk import Desk


@dataclass(frozen=True, slots=True)
class Remote:
    """An engine that is not in this process, nor on this machine as far as is known.

    Attributes:
        url: its server. figures: what its metrics tell; None where there are none, or events tell more.
    """

    url: str
    figures: "Callable[[], ServerFigures | None]"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Settings that hold from this start of the screen.

    Attributes:
        theme, thinking: as the settings of these names.
        kept, given: all values by name that came out of the settings file, and from the command line.
        live: those that the engine and its server begin with, and take others of while they run.
    """

    theme: str = "auto"
    thinking: str = "auto"
    kept: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    live: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Services:
    """The engine, the way to its events, the record of the chats, and the clocks.

    Attributes:
        clock: monotonic seconds, on the time base of the engine's events. wall: the time of day.
        server_line: the server's address, or why there is none, in words.
        notice: what the user must be told at the start, or None. log: the program's own last lines.
        switch: loads other models in this one's place; None where the engine is not ours to change.
        remote: where the engine is, if it is elsewhere; what measures this machine then says nothing about it.
        tour: the first run's hints. desk: makes what the settings room changes settings with.
    """

    link: Link
    bridge: Bridge
    recorder: Recorder
    glyphs: Glyphs
    clock: Callable[[], float]
    wall: Callable[[], datetime]
    server_line: Callable[[], str]
    notice: str | None
    log: LogTail
    switch: ModelSwitch | None = None
    remote: Remote | None = None
    tour: Tour | None = None
    desk: "Callable[[], Desk] | None" = None

    def standing(self) -> Line:
        """The model, and what the engine does, for the right end of a room's tabs."""
        state = self.link.state
        active = self.bridge.state.active
        word = f"{active} running" if state == "ready" and active else state.upper()
        model = self.model()
        name = one_line(model.name, self.glyphs) if model else self.bridge.state.stage if state == "loading" else ""
        return (
            (name, "muted"),
            ("  ", ""),
            (word, "error strong" if state in ("failed", "closed") else "accent strong"),
        )

    def model(self) -> ModelInfo | None:
        """The loaded model, or None while there is none to use."""
        if self.link.state != "ready":
            return None
        try:
            return self.link.model
        except EngineError:
            return None
