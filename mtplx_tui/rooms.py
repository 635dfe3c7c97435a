"""The rooms of the workbench: their keys, their names, and where each is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, Span, fit, merge, spread, width_of

if TYPE_CHECKING:
    from mtplx_tui.screens.room import Room
    from mtplx_tui.services import Services

WIDE_TABS = 110


@dataclass(frozen=True, slots=True)
class Tab:
    """A room's place in the row of tabs.

    Attributes:
        name: Textual's name of the screen. key: as Textual calls it. title, short: where there is room and where not.
        make: makes the room; called when it is first entered. None for the chat, which is always there.
    """

    name: str
    key: str
    title: str
    short: str
    make: "Callable[[Services], Room] | None"


def _dashboard(services: "Services") -> "Room":
    from mtplx_tui.screens.dashboard import DashboardScreen

    return DashboardScreen(services)


def _models(services: "Services") -> "Room":
    from mtplx_tui.screens.models import ModelsScreen

    return ModelsScreen(services)


def _tune(services: "Services") -> "Room":
    from mtplx_tui.screens.tune import TuneScreen

    return TuneScreen(services)


def _bench(services: "Services") -> "Room":
    from mtplx_tui.screens.bench import BenchScreen

    return BenchScreen(services)


def _settings(services: "Services") -> "Room":
    from mtplx_tui.screens.settings import SettingsScreen

    assert services.desk is not None
    return SettingsScreen(services, services.desk())


CHAT = "chat"
TABS = (
    Tab(CHAT, "f2", "Chat", "Chat", None),
    Tab("dashboard", "f3", "Dash", "Dash", _dashboard),
    Tab("models", "f4", "Models", "Model", _models),
    Tab("tune", "f5", "Tune", "Tune", _tune),
    Tab("bench", "f6", "Bench", "Bench", _bench),
    Tab("settings", "f7", "Set", "Set", _settings),
)


def tab_line(here: str, width: int, glyphs: Glyphs) -> Line:
    """All tabs, the present one in brackets."""
    spans: list[Span] = []
    for tab in TABS:
        number = tab.key.upper() if width >= WIDE_TABS else tab.key[1:]
        text = f"{number} {tab.title}" if width >= WIDE_TABS else f"{number}{tab.short}"
        spans.append((f"[{text}]", "accent strong") if tab.name == here else (f" {text} ", "muted"))
    return merge(spans)


def top_line(here: str, note: Line, width: int, glyphs: Glyphs) -> Line:
    """The tabs, and `note` at the right end. Where there is no room for both, the note's first span, a name, is cut."""
    tabs = tab_line(here, width, glyphs)
    name, *rest = note
    room = width - width_of(tabs) - width_of(tuple(rest)) - 1
    return spread(tabs, (*fit((name,), room, glyphs.ellipsis), *rest), width, glyphs.ellipsis)
