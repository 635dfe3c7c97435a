"""Tool calls in the chat: asked for, decided, run, answered, saved and drawn again."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, chat, composer, lines, shown, transcript, until
from scripted_handle import Play, ScriptedHandle
from textual.pilot import Pilot

from mtplx_tui.app import MtplxApp
from mtplx_tui.screens.calls import MOST_ROUNDS
from mtplx_tui.session_export import document
from mtplx_tui.store import Store
from mtplx_tui.tools.calls import DENIED, DENIED_WRITING_ON, NOT_RUN
from mtplx_tui.widgets.tool_card import ToolCard

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]
CALL = '{"name": "calculator", "arguments": {"expression":  "47 + 85"}}'
TIME = '{"name": "current_time", "arguments": {}}'


def app_of(pilot: Pilot[None]) -> MtplxApp:
    assert isinstance(pilot.app, MtplxApp)
    return pilot.app


def prompt(handle: ScriptedHandle) -> str:
    return bytes(handle.requests[-1].prompt).decode()


def states(app: MtplxApp) -> list[str]:
    return [block.call.state for block in transcript(app).blocks if isinstance(block, ToolCard)]


async def tools_on(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    composer(app).insert("/tools")
    await pilot.press("enter")
    await until(pilot, lambda: len(app.screen_stack) == 3, "the folder is asked for")
    await pilot.press("enter")
    await until(pilot, lambda: chat(app).talk.toolbox is not None, "tools are on")


async def called(pilot: Pilot[None], handle: ScriptedHandle, *calls: str, question: str = "What is it?") -> Play:
    play = (await ask(pilot, handle, question)).prefill()
    for call in calls:
        play.say(call, kind="tool").say("", kind="text")
    play.finish()
    await until(pilot, lambda: chat(app_of(pilot)).talk.turn is None, "the turn has ended")
    return play


async def next_round(pilot: Pilot[None], handle: ScriptedHandle, count: int) -> Play:
    await until(pilot, lambda: len(handle.requests) == count, "the results go to the model")
    return Play.of(handle, handle.requests[-1]).prefill()


async def decide(pilot: Pilot[None], *keys: str) -> None:
    if not transcript(app_of(pilot)).has_focus:
        await pilot.press("escape")
    await until(pilot, lambda: transcript(app_of(pilot)).decides, "a waiting card is chosen")
    await pilot.press(*keys)


async def test_an_allowed_call_runs_and_the_model_goes_on(
    make_app: MakeApp, handle: ScriptedHandle, store: Store
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await tools_on(pilot)
        await called(pilot, handle, CALL)
        await shown(pilot, "tool calculator  waits for your word")
        assert '{"expression":  "47 + 85"}' in transcript(app).text
        assert "a tool call waits" in str(chat(app).query_one("#compose").border_subtitle)
        assert composer(app).has_focus  # so nobody allows a call with a letter of their next message
        await pilot.press("a")
        assert (composer(app).text, states(app)) == ("a", ["waiting"])
        await pilot.press("backspace")
        await decide(pilot, "a")
        (await next_round(pilot, handle, 2)).say("It is 132.").finish()
        await shown(pilot, "It is 132.")
        assert prompt(handle).endswith('<user>|What is it?<assistant>|calculator({"expression":  "47 + 85"})<tool>|132')
        assert "tool calculator  done" in transcript(app).text
        assert "132" in transcript(app).text.partition("done")[2]
    rows = store.messages(store.sessions()[0].id)
    assert [(row.role, row.content) for row in rows] == [
        ("user", "What is it?"), ("assistant", ""), ("tool", "132"), ("assistant", "It is 132."),
    ]  # fmt: skip
    assert (rows[1].stats or {})["calls"][0]["arguments"] == '{"expression":  "47 + 85"}'
    facts = store.facts(store.sessions()[0].id)
    text = document(facts, rows, "md")
    assert 'Calls the tool calculator:\n\n```\n{"expression":  "47 + 85"}\n```' in text
    assert "calculator, done:\n\n```\n132\n```" in text
    assert '"state": "done"' in document(facts, rows, "json")


async def test_denied_failed_and_allowed_calls_of_one_answer_are_all_told(
    make_app: MakeApp, handle: ScriptedHandle
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await tools_on(pilot)
        zero = CALL.replace("47 + 85", "1 / 0")
        await called(pilot, handle, CALL, zero, TIME)
        assert states(app) == ["waiting", "waiting", "waiting"]
        await decide(pilot, "D")
        await until(pilot, lambda: states(app)[0] == "denied")
        await decide(pilot, "a")
        await until(pilot, lambda: states(app)[1] == "failed")
        assert len(handle.requests) == 1  # not before the last is decided
        await decide(pilot, "a")
        await next_round(pilot, handle, 2)
        told = prompt(handle).split("<tool>|")[1:]
        assert told[:2] == [DENIED, "Error: The expression divides by zero."]
        assert told[2].startswith("Monday, 2026-01-05")


async def test_allowed_for_the_chat_asks_no_more_but_for_a_limit_of_rounds(
    make_app: MakeApp, handle: ScriptedHandle
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await tools_on(pilot)
        await called(pilot, handle, CALL)
        await decide(pilot, "A")
        for count in range(2, MOST_ROUNDS + 2):
            (await next_round(pilot, handle, count)).say(CALL, kind="tool").finish()
        (await next_round(pilot, handle, MOST_ROUNDS + 2)).say(CALL, kind="tool").finish()
        await shown(pilot, f"{MOST_ROUNDS} rounds of calls ran by themselves")
        assert states(app)[-1] == "waiting"
        assert len(handle.requests) == MOST_ROUNDS + 2
        await decide(pilot, "a")
        (await next_round(pilot, handle, MOST_ROUNDS + 3)).say(TIME, kind="tool").finish()
        await until(pilot, lambda: states(app)[-1] == "waiting", "another tool asks for itself")
        await pilot.press("ctrl+n")
        await tools_on(pilot)
        await called(pilot, handle, CALL)
        await until(pilot, lambda: states(app) == ["waiting"], "another chat asks anew")


async def test_writing_on_denies_what_waits(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await tools_on(pilot)
        await called(pilot, handle, CALL)
        await ask(pilot, handle, "Never mind.")
        assert states(app) == ["denied"]
        assert prompt(handle).endswith(f"<tool>|{DENIED_WRITING_ON}<user>|Never mind.")


async def test_a_waiting_call_waits_again_when_its_chat_is_opened_and_a_decided_one_is_drawn(
    make_app: MakeApp, handle: ScriptedHandle, store: Store
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await tools_on(pilot)
        await called(pilot, handle, CALL)
        await decide(pilot, "a")
        (await next_round(pilot, handle, 2)).say("Now the time.").say(TIME, kind="tool").finish()
        await until(pilot, lambda: states(app) == ["done", "waiting"])
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await chat(again).saved.open(store.sessions()[0].id)
        assert states(again) == ["done", "waiting"]
        await decide(pilot, "a")
        (await next_round(pilot, handle, 3)).say("Four o'clock.").finish()
        await shown(pilot, "Four o'clock.")
        await until(pilot, lambda: chat(again).talk.turn is None)
        # another answer from the results: they stay, and are not run again
        await until(pilot, lambda: all(said.ref.id for said in chat(again).talk.conversation.said), "all is saved")
        await pilot.press("r")
        (await next_round(pilot, handle, 4)).say("Past four.").finish()
        await shown(pilot, "version 2 of 2")
        assert states(again) == ["done", "done"]
    rows = store.messages(store.sessions()[0].id)
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


async def test_without_tools_or_when_malformed_a_call_is_text_and_nothing_waits(
    make_app: MakeApp, handle: ScriptedHandle
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await called(pilot, handle, CALL)
        await shown(pilot, "tool call (not run)")
        await pilot.press("ctrl+n")
        await tools_on(pilot)
        evil = '{"name": "rm", "arguments": "[red]\x1b]52;c;eA==\x07"}'
        await called(pilot, handle, evil)
        await shown(pilot, '{"name": "rm"')
        assert states(app) == []
        assert "\x1b" not in transcript(app).text
        await called(pilot, handle, CALL.replace("47 + 85", "[b]\\u001b[2J[/b]"), question="Again?")
        await until(pilot, lambda: states(app) == ["waiting"])
        assert "[b]\\u001b[2J[/b]" in transcript(app).text


async def test_a_file_of_the_chosen_folder_is_read_and_a_stopped_answer_runs_nothing(
    make_app: MakeApp, handle: ScriptedHandle, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("buy milk\n\x1b[31mred")
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        composer(app).insert("/tools " + str(tmp_path / "nope"))
        await pilot.press("enter")
        await until(pilot, lambda: any("no folder" in n.message for n in app._notifications))
        composer(app).insert(f"/tools {tmp_path}")
        await pilot.press("enter")
        await until(pilot, lambda: chat(app).talk.toolbox is not None)
        await called(pilot, handle, '{"name": "read_file", "arguments": {"path": "notes.txt"}}')
        await decide(pilot, "a")
        play = await next_round(pilot, handle, 2)
        assert prompt(handle).endswith("<tool>|buy milk\n\x1b[31mred")
        await shown(pilot, "buy milk ␛[31mred")
        play.say(CALL, kind="tool")
        await shown(pilot, "is being written")
        play.say("", kind="text").finish("cancelled")
        await until(pilot, lambda: states(app)[-1] == "not run")
        chat(app).composer.focus()
        await ask(pilot, handle, "And now?")
        assert prompt(handle).endswith(f"<tool>|{NOT_RUN}<user>|And now?")
        composer(app).insert("/tools off")
        await pilot.press("enter")
        await until(pilot, lambda: chat(app).talk.toolbox is None)
        assert "READY" in lines(app, "top") or chat(app).talk.turn is not None
