"""What all rooms share: their tabs, and a footer that fits."""

from typing import Any

import pytest
from textual.app import App

from mtplx_tui import keys
from mtplx_tui.glyphs import ASCII, UNICODE, Glyphs
from mtplx_tui.keys import Key, footer
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.rooms import TABS, WIDE_TABS, tab_line, top_line
from mtplx_tui.screens.bench import BenchScreen
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.figures import chat_figures
from mtplx_tui.screens.help import NAME_WIDTH
from mtplx_tui.screens.models import ModelsScreen
from mtplx_tui.screens.palette import PALETTE, QUIT, commands
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


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [80, 100, WIDE_TABS, 120])
def test_a_long_name_leaves_the_tabs_and_the_state_whole(width: int, glyphs: Glyphs) -> None:
    for tab in TABS:
        note = (("reconnecting to a-host-with-a-long-name.example:8000 " * 3, "muted"), ("  ", ""), ("LOADING", ""))
        line = plain(top_line(tab.name, note, width, glyphs))
        tabs = plain(tab_line(tab.name, width, glyphs))
        assert line.startswith(f"{tabs} reconn")
        assert line.endswith(f"{glyphs.ellipsis}  LOADING")
        assert len(line) == width
        short = plain(top_line(tab.name, (("m", "muted"), ("  ", ""), ("READY", "")), width, glyphs))
        assert short == tabs + "m  READY".rjust(width - len(tabs))


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


def test_a_name_of_the_help_leaves_a_space_before_its_text() -> None:
    shown = {name: [key.shown for key in table if key.help] for name, table in tables().items()}
    figures = [name for glyphs in (ASCII, UNICODE) for name, _ in chat_figures(glyphs)]
    for name, names in {**shown, "figures": figures}.items():
        assert [each for each in names if len(each) >= NAME_WIDTH] == [], name


def test_the_palette_has_the_other_rooms_and_what_the_room_can_do() -> None:
    for room in ROOMS:
        titles = {command.title: command.help for command in commands(App(), room.__new__(room), ())}
        assert {f"Room: {tab.title}" for tab in TABS if tab.name != room.NAME} <= set(titles), room
        for key in room.KEYS:
            if key.footer and key.action and key.key.startswith(("ctrl+", "f1")) and key.action not in (PALETTE, QUIT):
                assert key.help in titles[key.footer.capitalize()], room
