"""What opens above a room looks like: lists, questions and lines to type in; see `test_looks` for how.

Names that others gave are as bad as they can be: long, with markup and with what drives a terminal.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from helpers import ask, chat, transcript, until, write
from scripted_handle import ScriptedHandle
from syrupy.assertion import SnapshotAssertion
from test_looks import app_in, different, fixed, in_every_way, pictures  # noqa: F401  the fixture is used by being here
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input, LoadingIndicator, OptionList, Static

from mtplx_tui.app import MtplxApp
from mtplx_tui.screens.ask import AskScreen, SureScreen
from mtplx_tui.screens.edit import EditScreen
from mtplx_tui.screens.pick import PickScreen
from mtplx_tui.screens.sessions import SessionsScreen
from mtplx_tui.screens.settings import SettingsScreen
from mtplx_tui.store import Store

MakeApp = Callable[..., MtplxApp]
EVIL = "\x1b]52;c;aGk=\x07[/x] [red]\x1b[2J"
LONG = "publisher-with-a-long-name/model-of-many-parameters-quantised-in-many-ways-4bit"


async def saved(pilot: Pilot[None], app: MtplxApp, handle: ScriptedHandle) -> None:
    """The list of saved chats."""
    (await ask(pilot, handle, f"What {EVIL} is a question with many words that goes on to the edge?")).prefill().say(
        "An answer."
    ).finish()
    await until(pilot, lambda: chat(app).talk.turn is None)
    app.services.recorder.call(of_one_day)
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(app.screen, SessionsScreen) and app.screen.query(OptionList))
    await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 3)


async def deleting(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    app.notify(f"The server refused: {EVIL}")
    await pilot.press("down", "d")
    await until(pilot, lambda: isinstance(app.screen, SureScreen))


async def naming(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("n")
    await until(pilot, lambda: isinstance(app.screen, SessionsScreen))
    await pilot.press("r")
    await until(pilot, lambda: isinstance(app.screen, AskScreen) and app.focused)
    app.screen.query_one(Input).post_message(events.Paste(f"pasted {EVIL}"))
    app.screen.query_one(Input).cursor_blink = False
    await until(pilot, lambda: "pasted" in app.screen.query_one(Input).value)


async def earlier(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    """Earlier messages."""
    await pilot.press("escape", "escape")
    await until(pilot, lambda: app.screen is app.chat)
    await pilot.press("ctrl+r")
    await until(pilot, lambda: isinstance(app.screen, PickScreen) and app.focused)
    app.screen.query_one(Input).cursor_blink = False


async def finding(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("escape", "escape")
    await until(pilot, lambda: transcript(app).has_focus)
    await pilot.press("slash")
    await until(pilot, lambda: isinstance(app.screen, AskScreen) and app.focused)
    app.screen.query_one(Input).cursor_blink = False


async def editing(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    """A setting that can not be what was typed; the server's reason may be any text."""
    await pilot.press("escape", "f7")
    await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen._view.chosen is not None)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, EditScreen) and app.focused)
    app.screen.query_one(Input).cursor_blink = False
    await write(pilot, "hot")
    await pilot.press("enter")
    await until(pilot, lambda: "a number" in str(app.screen.query_one("#reason", Static).content))
    assert isinstance(app.screen, EditScreen)
    app.screen.refuse(f"The server refused this with many words, of which these are the first, {EVIL} and the last.")


async def choosing(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("escape", "left", "left", "enter")
    await until(pilot, lambda: isinstance(app.screen, PickScreen) and app.focused)
    app.screen.query_one(Input).cursor_blink = False


async def palette(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("escape", "ctrl+p")
    await until(pilot, lambda: isinstance(app.screen, CommandPalette) and app.focused)
    app.screen.query_one(Input).cursor_blink = False
    await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 11)
    await until(pilot, lambda: not app.screen.query_one(LoadingIndicator).has_class("--visible"))


SCENES = {"saved": saved, "deleting": deleting, "naming": naming, "earlier": earlier, "finding": finding,
          "editing": editing, "choosing": choosing, "palette": palette}  # fmt: skip


@pytest.fixture
def chats(store: Store) -> None:
    """Two from before, whose model and title have names too long for a line."""
    for title in ("short", f"long {EVIL} " * 9):
        number = store.new_session(LONG)
        store.add_message(number, "user", title)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def of_one_day(store: Store) -> None:
    with store._write() as db:
        db.execute("UPDATE sessions SET updated = 1700000000 + id")


@pytest.mark.anyio
@pytest.mark.usefixtures("chats", "utc")
@in_every_way
async def test_what_opens_above_a_room(
    way: str, snapshot: SnapshotAssertion, make_app: MakeApp, handle: ScriptedHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = await pictures(app_in(way, make_app, monkeypatch), handle, SCENES)
    assert not different(taken, snapshot)
