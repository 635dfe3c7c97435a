"""Commands, files, the editor and earlier messages in the message box."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, chat, composer, lines, until, write
from scripted_handle import ScriptedHandle
from textual.pilot import Pilot
from textual.widgets import Static

from mtplx_tui.app import MtplxApp
from mtplx_tui.editor import EditorError, edited
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.edit import EditScreen
from mtplx_tui.screens.pick import PickScreen
from mtplx_tui.store import Store

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]


async def command(pilot: Pilot[None], text: str) -> None:
    app = pilot.app
    assert isinstance(app, MtplxApp)
    composer(app).load_text(text)
    await pilot.press("enter")


def said(app: MtplxApp, words: str) -> Callable[[], bool]:
    return lambda: any(words in note.message for note in app._notifications)


def subtitle(app: MtplxApp) -> str:
    return str(chat(app).query_one("#compose").border_subtitle)


async def test_a_slash_shows_the_commands_and_tab_completes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await write(pilot, "/")
        await until(pilot, lambda: "/attach" in subtitle(app))
        await write(pilot, "ren")
        await until(pilot, lambda: "name this chat" in subtitle(app))
        await pilot.press("tab")
        assert composer(app).text == "/rename "
        await pilot.press("ctrl+u")
        await until(pilot, lambda: "Enter send" in subtitle(app))


async def test_a_room_is_entered_by_its_name(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, "/dashboard")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_commands_are_never_sent_and_an_unknown_one_is_said(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, "/frobnicate now")
        await until(pilot, said(app, "no such command"))
        assert handle.requests == []


async def test_two_slashes_send_one(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, handle, "//etc/passwd")
        assert bytes(handle.requests[0].prompt) == b"<user>|/etc/passwd"


async def test_settings_and_system_prompt_of_a_chat(make_app: MakeApp, handle: ScriptedHandle, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, "/set temperature 0")
        await command(pilot, "/set temperature 9")
        await until(pilot, said(app, "from 0 to 2"))
        await command(pilot, "/system Be brief.")
        await until(pilot, lambda: chat(app).talk.conversation.session.system == "Be brief.")
        play = (await ask(pilot, handle, "hi")).prefill().say("ho").finish()
        assert play.id
        assert handle.requests[0].sampling.temperature == 0.0
        assert bytes(handle.requests[0].prompt).startswith(b"<system>|Be brief.")
        await until(pilot, lambda: chat(app).talk.turn is None and store.sessions())
        await command(pilot, "/set temperature")
        await until(pilot, lambda: store.facts(1).options == {})
        assert store.facts(1).system == "Be brief."


async def test_the_list_of_a_chats_settings_shows_what_holds_and_changes_it(
    make_app: MakeApp, handle: ScriptedHandle
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        session = chat(app).talk.conversation.session

        async def listed() -> str:
            await until(pilot, lambda: isinstance(app.screen, PickScreen) and app.screen._found)
            assert isinstance(app.screen, PickScreen)
            return "\n".join(app.screen._found)

        await command(pilot, "/set")
        assert "the model's own" in await listed()
        await write(pilot, "temperature")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EditScreen) and app.focused)
        await write(pilot, "9")
        await pilot.press("enter")
        await until(pilot, lambda: "from 0 to 2" in str(app.screen.query_one("#reason", Static).content))
        await pilot.press("ctrl+u")
        await write(pilot, "0.2")
        await pilot.press("enter")
        assert "temperature         0.2" in await listed()
        await write(pilot, "thinking")
        await pilot.press("enter")
        await until(pilot, lambda: session.options == {"temperature": 0.2, "thinking": False})
        assert "thinking            off" in await listed()
        await write(pilot, "system")
        await pilot.press("enter")
        await until(pilot, lambda: composer(app).text == "/system ")
        assert handle.requests == []


async def test_a_file_becomes_a_chip_and_is_sent_whole(
    make_app: MakeApp, handle: ScriptedHandle, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("print('x')\n" * 3)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, f"/attach {tmp_path / 'a.py'}")
        await until(pilot, lambda: "[a.py:" in composer(app).text)
        await write(pilot, "explain")
        await pilot.press("enter")
        await until(pilot, lambda: handle.requests)
        assert b"a.py:\n```\nprint('x')\nprint('x')\nprint('x')\n```\n" in bytes(handle.requests[0].prompt)


async def test_what_can_not_be_attached_is_said(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, f"/attach {tmp_path / 'none.txt'}")
        await until(pilot, said(app, "There is no file"))
        assert composer(app).text == ""


async def test_earlier_messages_are_searched(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        for text in ("why is the sky blue", "write a\npoem of two lines", "what is 2 + 2"):
            (await ask(pilot, handle, text)).prefill().say("x").finish()
            await until(pilot, lambda: chat(app).talk.turn is None)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(app.screen, PickScreen))
        await write(pilot, "POEM two")
        await pilot.press("enter")
        await until(pilot, lambda: composer(app).text == "write a\npoem of two lines")


async def test_a_chat_is_named_exported_and_copied_to_another(
    make_app: MakeApp, handle: ScriptedHandle, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DOCUMENTS_DIR", str(tmp_path))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await command(pilot, "/rename too early")
        await until(pilot, said(app, "Nothing is saved"))
        (await ask(pilot, handle, "hi")).prefill().say("ho").finish()
        await until(pilot, lambda: chat(app).talk.turn is None and store.messages(1)[-1].finish_reason)
        await command(pilot, "/rename my chat")
        await until(pilot, lambda: store.facts(1).title == "my chat")
        await until(pilot, lambda: " my chat " in lines(app, "top"))
        await command(pilot, "/export")
        await until(pilot, lambda: list(tmp_path.rglob("my-chat-*.md")))
        await command(pilot, "/fork")
        await until(pilot, lambda: chat(app).talk.conversation.session.id == 2)


class TestEditor:
    def test_it_gives_what_was_saved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = tmp_path / "ed.py"
        script.write_text("import sys\nopen(sys.argv[1], 'a').write(' and more\\n')\n")
        monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
        assert edited("some") == "some and more"

    @pytest.mark.parametrize("editor", ["/no/such/editor", "false", "'unclosed"])
    def test_a_failure_is_said(self, editor: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VISUAL", editor)
        with pytest.raises(EditorError):
            edited("some")
