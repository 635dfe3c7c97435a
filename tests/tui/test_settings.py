"""The settings: what each is and where it comes from, changing one here and at a server, and the room that does it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ask, composer, until, write
from remote_servers import Proxy
from scripted_engine import ScriptedEngine
from scripted_handle import ScriptedHandle
from textual.pilot import Pilot
from textual.widgets import Input, Static

import engine
from engine.chat import load_chat_format
from mtplx_tui.app import MtplxApp
from mtplx_tui.link import LocalLink, Question
from mtplx_tui.remote.api import NotNowError
from mtplx_tui.remote.settings import RemoteSettings
from mtplx_tui.saved_settings import SettingError, load, save, setting
from mtplx_tui.screens.edit import EditScreen
from mtplx_tui.screens.pick import PickScreen
from mtplx_tui.screens.settings import SettingsScreen
from mtplx_tui.server_settings import LocalSettings, ServerSettings
from mtplx_tui.services import Chosen
from mtplx_tui.settings_page.desk import Desk, Entry, Screen
from mtplx_tui.themes import LIGHT
from mtplx_tui.widgets.blocks import Answer
from mtplx_tui.widgets.lines import Lines
from server.run import ServerThread

MakeApp = Callable[..., MtplxApp]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mtplx-tui" / "settings.toml"


class Drawn(dict[str, Any]):
    """A screen's values, and what it was told to use."""

    def __init__(self) -> None:
        super().__init__(theme="auto", thinking="auto")

    @property
    def screen(self) -> Screen:
        return Screen(lambda: self, self.__setitem__)


def desk(file: Path, server: ServerSettings | None, here: bool = True, **more: Any) -> Desk:
    return Desk(file, server, here, Drawn().screen, **more)


def entry(desk: Desk, name: str) -> Entry:
    return next(entry for entry in desk.read().entries if entry.setting.name == name)


class TestHere:
    def test_a_value_holds_at_once_is_kept_and_goes_back(self, file: Path, handle: ScriptedHandle) -> None:
        server = LocalSettings({}, handle)
        mine = desk(file, server)
        assert entry(mine, "temperature").own == "the model's own: 0.6"
        mine.change(setting("temperature"), "0.3")
        now = entry(mine, "temperature")
        assert (now.value, now.source, now.own) == ("0.3", "file", "")
        assert server.live.value.temperature == load(file).saved.temperature == 0.3
        server.change({"temperature": 0.9})  # somebody else, over HTTP
        assert (entry(mine, "temperature").value, entry(mine, "temperature").source) == ("0.9", "this run")
        mine.change(setting("temperature"), None)
        assert entry(mine, "temperature").source == "default"
        assert server.live.value.temperature is None
        assert load(file).saved.model_fields_set == set()

    def test_what_needs_a_start_says_what_holds_until_then(self, file: Path, handle: ScriptedHandle) -> None:
        mine = desk(file, LocalSettings({}, handle), kept={"profile": "burst"}, given={"mode": "ar"})
        save(file, {"profile": "burst"})
        assert (entry(mine, "profile").value, entry(mine, "profile").source) == ("burst", "file")
        mine.change(setting("profile"), "exact")
        assert (entry(mine, "profile").value, entry(mine, "profile").later) == ("burst", "exact")
        assert (entry(mine, "mode").value, entry(mine, "mode").source) == ("ar", "command line")
        assert entry(mine, "mode").later == "mtp"

    def test_what_can_not_be_changes_nothing_and_says_why(self, file: Path, handle: ScriptedHandle) -> None:
        server = LocalSettings({}, handle)
        for name, text in (("temperature", "hot"), ("temperature", "2.5"), ("depth", "9"), ("port", "70000"),
                           ("memory", "8 apples"), ("theme", "neon")):  # fmt: skip
            with pytest.raises(SettingError, match=name):
                desk(file, server).change(setting(name), text)
        assert not file.exists()
        assert server.live.value.temperature is None

    def test_a_file_that_can_not_be_written_is_no_secret(self, tmp_path: Path, handle: ScriptedHandle) -> None:
        (tmp_path / "taken").write_text("a file where the folder should be")
        mine = desk(tmp_path / "taken" / "settings.toml", LocalSettings({}, handle))
        with pytest.raises(SettingError, match=r"It holds now, but .*can not be written"):
            mine.change(setting("temperature"), "0.3")
        assert any("can not be read" in note for note in mine.read().notes)
        assert entry(mine, "temperature").value == "0.3"

    def test_an_answer_begins_from_what_is_set(self, handle: ScriptedHandle) -> None:
        settings = LocalSettings({"top_k": 7}, handle)
        link = LocalLink(handle, settings)
        settings.change({"temperature": 0.2, "depth": 2, "max_tokens": 50})
        assert (link.model.sampling.temperature, link.model.sampling.top_k) == (0.2, 7)
        link.ask(Question([{"role": "user", "content": "hi"}]), lambda event: None)
        link.ask(Question([{"role": "user", "content": "hi"}], max_tokens=9), lambda event: None)
        first, second = handle.requests
        assert (first.sampling.temperature, first.sampling.top_k, first.depth) == (0.2, 7, 2)
        assert (first.max_tokens, second.max_tokens) == (50, 9)


class TestAtAServer:
    @pytest.fixture
    def proxy(self) -> Iterator[Proxy]:
        scripted = ScriptedEngine(load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m"))
        server = ServerThread(scripted, port=0)
        server.start()
        assert server.address is not None
        proxy = Proxy(int(server.address.rpartition(":")[2]))
        yield proxy
        proxy.close()
        assert server.stop(0.5)
        scripted.close()

    def test_its_settings_are_read_changed_and_refused_in_its_words(self, proxy: Proxy, file: Path) -> None:
        there = desk(file, RemoteSettings(proxy.url, None), here=False)
        assert entry(there, "temperature").source == "default"
        there.change(setting("temperature"), "0.4")
        assert (entry(there, "temperature").value, entry(there, "temperature").source) == ("0.4", "that server")
        assert not file.exists()  # it is not this machine's
        with pytest.raises(SettingError, match="depth"):
            RemoteSettings(proxy.url, None).change({"depth": 11})
        there.change(setting("thinking"), "open")
        assert load(file).saved.thinking == "open"
        names = {entry.setting.name for entry in there.read().entries}
        assert "profile" not in names
        assert {"aliases", "theme", "glyphs"} <= names

        proxy.refusing = True
        proxy.cut()
        reading = there.read()
        assert any("server's settings can not be read" in note for note in reading.notes)
        assert {entry.setting.section for entry in reading.entries} == {"display"}
        with pytest.raises(NotNowError):
            there.change(setting("temperature"), "0.5")


def page(app: MtplxApp) -> str:
    return app.screen.query_one("#page", Lines).text


async def enter(pilot: Pilot[None], section: str) -> SettingsScreen:
    app = pilot.app
    assert isinstance(app, MtplxApp)
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and "temperature" in page(app), "the settings")
    assert isinstance(app.screen, SettingsScreen)
    while app.screen._view.name != section:
        await pilot.press("right")
    return app.screen


@pytest.mark.anyio
async def test_a_value_is_refused_in_place_and_then_taken(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot, "sampling")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EditScreen))
        await write(pilot, "hot")
        await pilot.press("enter")
        reason = app.screen.query_one("#reason", Static)
        await until(pilot, lambda: "'hot'" in str(reason.content))
        assert app.screen.query_one(Input).value == "hot"
        await pilot.press("backspace", "backspace", "backspace", "0", "full_stop", "2", "enter")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and "0.2" in page(app))
        assert load(file).saved.temperature == 0.2
        assert app.services.link.model.sampling.temperature == 0.2
        await pilot.press("r")
        await until(pilot, lambda: "the model's own: 0.6" in page(app))
        assert load(file).saved.temperature is None


@pytest.mark.anyio
async def test_what_the_screen_draws_with_holds_at_once(make_app: MakeApp, handle: ScriptedHandle, file: Path) -> None:
    app = make_app(chosen=Chosen(thinking="open"))
    async with app.run_test(size=(80, 24)) as pilot:
        play = (await ask(pilot, handle, "hello")).prefill()
        play.say("Hm", ".", kind="reasoning").say("Yes", ".").finish()
        answer = next(block for block in app.chat.transcript.blocks if isinstance(block, Answer))
        await until(pilot, lambda: app.chat.talk.turn is None)
        assert answer.unfolded
        assert set(setting("theme").choices) - {"auto"} <= set(app.available_themes)
        await enter(pilot, "display")
        for row, choice in (("theme", LIGHT.name), ("thinking", "folded")):
            room = app.screen
            assert isinstance(room, SettingsScreen)
            while room._view.chosen is None or room._view.chosen.setting.name != row:
                await pilot.press("down")
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, PickScreen))
            app.screen.query_one(Input).value = choice
            await pilot.press("enter")
            await until(
                pilot, lambda choice=choice: isinstance(app.screen, SettingsScreen) and choice in page(app), choice
            )
        assert app.theme == LIGHT.name
        assert not answer.unfolded
        assert (load(file).saved.theme, load(file).saved.thinking) == (LIGHT.name, "folded")


@pytest.mark.anyio
async def test_the_keys_of_every_room_can_be_read(make_app: MakeApp, file: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        room = await enter(pilot, "keys")
        seen = page(app)
        await pilot.press("pagedown")
        assert page(app) != seen
        room.action_choose(1000)
        assert "take the chosen setting back" in page(app)
        await pilot.press("enter", "r")  # there is nothing to change
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("f2")
        await until(pilot, lambda: app.screen is app.chat)
        assert composer(app).has_focus
