"""Reading in the chat: choosing messages, copying, editing, other versions, forks, finding."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, chat, composer, shown, transcript, until, write
from scripted_handle import Play, ScriptedHandle
from textual.pilot import Pilot

from mtplx_tui import paths
from mtplx_tui.app import MtplxApp
from mtplx_tui.screens.ask import AskScreen
from mtplx_tui.store import Store
from mtplx_tui.widgets.blocks import Answer, UserMessage

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]
CODE = "Two:\n\n```python\nprint(1)\n```\n\n```\nsecond\n```\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SSH_CONNECTION", "1")  # or the clipboard of whoever runs the tests would change


def app_of(pilot: Pilot[None]) -> MtplxApp:
    assert isinstance(pilot.app, MtplxApp)
    return pilot.app


async def answered(pilot: Pilot[None], handle: ScriptedHandle, question: str, answer: str) -> Play:
    play = (await ask(pilot, handle, question)).prefill().say(answer).finish()
    await settled(pilot)
    return play


async def settled(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    await until(pilot, lambda: chat(app).talk.turn is None, "the turn has ended")
    await until(pilot, lambda: all(said.ref.id for said in chat(app).talk.conversation.said), "all is saved")


async def read(pilot: Pilot[None], *keys: str) -> None:
    if not transcript(app_of(pilot)).has_focus:
        await pilot.press("escape")
    await until(pilot, lambda: transcript(app_of(pilot)).has_focus)
    await pilot.press(*keys)


def copied() -> str:
    return paths.last_copy_file().read_text() if paths.last_copy_file().exists() else ""


def path(app: MtplxApp) -> list[str]:
    return [said.content for said in chat(app).talk.conversation.said]


async def test_escape_goes_to_the_messages_and_back(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        await read(pilot)
        assert isinstance(transcript(app).chosen, Answer)
        await pilot.press("up")
        assert isinstance(transcript(app).chosen, UserMessage)
        await pilot.press("up", "k")
        assert isinstance(transcript(app).chosen, UserMessage), "there is none before the first"
        await pilot.press("escape")
        assert composer(app).has_focus
        assert transcript(app).chosen is None


async def test_typing_goes_on_in_the_composer(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        await read(pilot)
        await write(pilot, "What now")
        assert composer(app).text == "What now"


async def test_copying_a_message_its_code_and_the_whole_chat(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "show \x1b[31m code", CODE)
        await read(pilot, "y")
        await until(pilot, lambda: copied() == CODE)
        await pilot.press("c")
        await until(pilot, lambda: copied() == "print(1)\n")
        await pilot.press("c")
        await until(pilot, lambda: copied() == "second\n")
        await pilot.press("c")
        await until(pilot, lambda: copied() == "print(1)\n")
        await pilot.press("Y")
        await until(pilot, lambda: copied().startswith("# show"))
        assert CODE.strip() in copied()


async def test_another_answer_and_back_to_the_first(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first answer")
        await read(pilot, "r")
        await until(pilot, lambda: len(handle.requests) == 2)
        Play.of(handle, handle.requests[-1]).prefill().say("second answer").finish()
        await shown(pilot, "second answer")
        await settled(pilot)
        assert handle.requests[0].prompt == handle.requests[1].prompt
        await shown(pilot, "version 2 of 2")
        assert "first answer" not in transcript(app).text
        await read(pilot, "left_square_bracket")
        await shown(pilot, "version 1 of 2")
        await shown(pilot, "first answer")
        await pilot.press("right_square_bracket")
        await shown(pilot, "second answer")


async def test_an_edited_question_takes_the_old_ones_place(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        await answered(pilot, handle, "two", "second")
        composer(app).insert("half a thought")
        await read(pilot, "up", "up", "up", "e")
        await until(pilot, lambda: composer(app).text == "one")
        composer(app).insert(" and a half")
        await pilot.press("enter")
        await until(pilot, lambda: len(handle.requests) == 3)
        assert b"two" not in bytes(handle.requests[-1].prompt)
        Play.of(handle, handle.requests[-1]).prefill().say("other").finish()
        await settled(pilot)
        assert path(app) == ["one and a half", "other"]
        assert composer(app).text == "half a thought"
        await read(pilot, "up", "left_square_bracket")
        await until(pilot, lambda: path(app) == ["one", "first", "two", "second"])


async def test_an_edit_can_be_given_up(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        composer(app).insert("half")
        await read(pilot, "up", "e")
        await until(pilot, lambda: composer(app).text == "one")
        await pilot.press("escape")
        assert composer(app).text == "half"
        assert path(app) == ["one", "first"]


async def test_what_could_not_be_sent_again_comes_back(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        await read(pilot, "up", "e")
        await until(pilot, lambda: composer(app).text == "one")
        composer(app).load_text("x" * 1990)
        chat(app).talk.conversation.session.system = "y" * 3000  # together more than the context
        await pilot.press("enter")
        await until(pilot, lambda: composer(app).text == "x" * 1990)
        assert path(app) == ["one", "first"]
        assert "first" in transcript(app).text


async def test_a_fork_goes_on_by_itself(make_app: MakeApp, handle: ScriptedHandle, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        await answered(pilot, handle, "two", "second")
        await read(pilot, "up", "up", "b")
        await until(pilot, lambda: path(app) == ["one", "first"])
        await answered(pilot, handle, "three", "third")
        assert [len(store.messages(row.id)) for row in store.sessions()] == [4, 4]


async def test_find_goes_from_match_to_match_and_round(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        for n in range(12):
            await answered(pilot, handle, f"question {n}", ("The Needle. " if n in (2, 7) else "hay. ") * 20)
        await read(pilot, "slash")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        await write(pilot, "needle")
        await pilot.press("enter")
        await until(pilot, lambda: transcript(app).chosen is not None and app.screen is chat(app))
        answers = [block for block in transcript(app).blocks if isinstance(block, Answer)]
        await until(pilot, lambda: transcript(app).chosen is answers[2])
        await pilot.press("n")
        await until(pilot, lambda: transcript(app).chosen is answers[7])
        await pilot.press("n")
        await until(pilot, lambda: transcript(app).chosen is answers[2])
        top = transcript(app).scroll_offset.y
        assert "Needle" in "\n".join(transcript(app).text.split("\n")[top : top + transcript(app).size.height])


async def test_nothing_is_changed_while_an_answer_runs(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot, handle, "one", "first")
        play = (await ask(pilot, handle, "two")).prefill()
        transcript(app).focus()
        await pilot.press("up", "r", "e", "b")
        await until(pilot, lambda: any("still being written" in note.message for note in app._notifications))
        assert len(handle.requests) == 2
        play.say("second").finish()
        await settled(pilot)
        assert path(app) == ["one", "first", "two", "second"]
