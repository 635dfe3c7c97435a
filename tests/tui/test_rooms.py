"""What all rooms share: their tabs, and a footer that fits."""

from typing import Any

from mtplx_tui import keys
from mtplx_tui.glyphs import ASCII
from mtplx_tui.keys import Key, footer
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.rooms import TABS, WIDE_TABS, tab_line
from mtplx_tui.screens.bench import BenchScreen
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.models import ModelsScreen
from mtplx_tui.screens.settings import SettingsScreen
from mtplx_tui.screens.tune import TuneScreen

ROOMS = (ChatScreen, DashboardScreen, ModelsScreen, TuneScreen, BenchScreen, SettingsScreen)


def tables() -> dict[str, tuple[Key, ...]]:
    """The keys of every room, and of what a room does for a while."""
    found: dict[str, Any] = {room.NAME: room.KEYS for room in ROOMS}
    apart = {name: value for name, value in vars(keys).items() if name.endswith("_KEYS")}
    return {**found, **{name: value for name, value in apart.items() if value not in found.values()}}


def test_every_room_has_a_tab() -> None:
    assert [tab.name for tab in TABS] == [room.NAME for room in ROOMS]


def test_tabs_leave_room_for_the_model_at_the_right() -> None:
    for tab in TABS:
        assert width_of(tab_line(tab.name, 80, ASCII)) <= 54
        assert width_of(tab_line(tab.name, WIDE_TABS, ASCII)) <= 70


def test_a_footer_shows_whole_keys_only_and_leaves_out_first_what_it_can_spare() -> None:
    for name, table in tables().items():
        before: set[str] = set()
        for width in range(60, 161):
            text = plain(footer(table, width))
            wanted = [key for key in table if key.footer]
            shown = [key for key in wanted if f" {key.shown} {key.footer} " in text]
            where = f"{name} at {width}: {text!r}"
            assert len(text) <= width, where
            assert text == "".join(f" {key.shown} {key.footer} " for key in shown), where
            gone = [key for key in wanted if key not in shown]
            assert all(left.spare >= kept.spare for left in gone for kept in shown), where
            assert all(key in shown for key in wanted if key.spare == 0), where
            names = {key.shown for key in shown}
            assert before <= names, f"{where}: a wider one shows less"
            before = names
        assert len(before) == len(wanted), f"{name}: at 160 columns all of them fit"
