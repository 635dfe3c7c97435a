"""The list of saved chats: found, opened, named, written to files, deleted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, lines, until, write
from scripted_handle import ScriptedHandle
from textual.pilot import Pilot
from textual.widgets import OptionList

from mtplx_tui.app import MtplxApp
from mtplx_tui.screens.ask import AskScreen, SureScreen
from mtplx_tui.screens.sessions import SessionsScreen
from mtplx_tui.store import Store

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]


@pytest.fixture
def three(store: Store) -> list[int]:
    numbers = []
    for title in ("about foxes", "about [bears]", "about \x1b[31mowls"):
        numbers.append(store.new_session("demo-13m"))
        store.add_message(numbers[-1], "user", title)
        store.add_message(numbers[-1], "assistant", f"{title}: nothing", "hm")
    return numbers


def labels(app: MtplxApp) -> str:
    options = app.screen.query_one(OptionList)
    return "\n".join(str(options.get_option_at_index(i).prompt) for i in range(options.option_count))


async def enter(pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(pilot.app.screen, SessionsScreen) and pilot.app.screen.query(OptionList))
    await until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count)


async def test_it_lists_the_last_used_first_and_shows_no_escape(make_app: MakeApp, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        lines = labels(app).split("\n")
        assert [word for line in lines for word in ("owls", "[bears]", "foxes") if word in line] == [
            "owls", "[bears]", "foxes",
        ]  # fmt: skip
        assert "\x1b" not in labels(app)


async def test_search_narrows_it_and_enter_opens(make_app: MakeApp, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("slash")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await write(pilot, "FOXES")
        await pilot.press("enter")
        await until(
            pilot, lambda: isinstance(app.screen, SessionsScreen) and app.screen.query_one(OptionList).option_count == 1
        )
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.talk.conversation.session.id == three[0])
        assert "about foxes: nothing" in app.chat.transcript.text


async def test_rename(make_app: MakeApp, store: Store, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await pilot.press("ctrl+u")
        await write(pilot, "night birds")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SessionsScreen) and "night birds" in labels(app))
        assert store.facts(three[2]).title == "night birds"


async def test_a_new_name_of_the_chat_that_is_shown_stands_above_it(make_app: MakeApp, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "owls" in lines(app, "top"))
        for name in ("night birds", "day birds"):
            await enter(pilot)
            await pilot.press("r")
            await until(pilot, lambda: isinstance(app.screen, AskScreen))
            await pilot.press("ctrl+u")
            await write(pilot, name)
            await pilot.press("enter")
            await until(pilot, lambda name=name: isinstance(app.screen, SessionsScreen) and name in labels(app))  # type: ignore[misc]
            await pilot.press("escape")
            await until(pilot, lambda name=name: f" {name} " in lines(app, "top"))  # type: ignore[misc]


async def test_delete_asks_first(make_app: MakeApp, store: Store, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        for answer, left in (("n", 3), ("y", 2)):
            await pilot.press("d")
            await until(pilot, lambda: isinstance(app.screen, SureScreen))
            await pilot.press(answer)
            await until(pilot, lambda: isinstance(app.screen, SessionsScreen))
            await until(pilot, lambda left=left: app.screen.query_one(OptionList).option_count == left)
        assert [row.id for row in store.sessions()] == [three[1], three[0]]


async def test_when_the_chat_that_is_shown_is_deleted_a_new_one_begins_and_is_saved(
    make_app: MakeApp, handle: ScriptedHandle, store: Store, three: list[int]
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.talk.conversation.session.id == three[2])
        await enter(pilot)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, SureScreen))
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, SessionsScreen) and "owls" not in labels(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.chat.talk.conversation.session.id is None)
        assert "owls" not in app.chat.transcript.text
        (await ask(pilot, handle, "and newts?")).prefill().say("wet").finish()
        await until(pilot, lambda: app.chat.talk.conversation.session.id)
    newest = store.sessions()[0]
    assert (newest.title, newest.messages) == ("and newts?", 2)


async def test_fork_goes_on_in_a_copy(make_app: MakeApp, store: Store, three: list[int]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("down", "b")
        await until(pilot, lambda: app.chat.talk.conversation.session.id not in (None, *three))
        assert "about [bears]: nothing" in app.chat.transcript.text
    assert [row.messages for row in store.sessions()] == [2] * 4


async def test_export_in_both_forms(
    make_app: MakeApp, three: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DOCUMENTS_DIR", str(tmp_path))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("down", "m", "s")
        await until(pilot, lambda: len(list((tmp_path / "mtplx-tui").glob("about-bears*"))) == 2)
    files = {file.suffix: file.read_text() for file in (tmp_path / "mtplx-tui").iterdir()}
    assert files[".md"].startswith("# about [bears]\n\nModel: demo-13m\n\n## You\n\nabout [bears]")
    assert [message["role"] for message in json.loads(files[".json"])["messages"]] == ["user", "assistant"]


async def test_without_chats_it_says_so(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        assert "No chat is saved yet" in labels(app)
        await pilot.press("r", "d", "m", "enter", "escape")
        await until(pilot, lambda: app.screen is app.chat)
