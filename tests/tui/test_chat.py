"""The chat screen, driven by keys over a scripted engine and a real store."""

import asyncio
import gc
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, chat, composer, lines, shown, transcript, until, write
from scripted_handle import Clock, Play, ScriptedHandle
from textual import events
from textual.geometry import Offset
from textual.pilot import Pilot

from engine.events import LoadEvent, ReadyEvent
from mtplx_tui.app import MtplxApp
from mtplx_tui.drafts import Draft
from mtplx_tui.link import LocalLink
from mtplx_tui.store import Store
from mtplx_tui.themes import LIGHT
from mtplx_tui.widgets.block_view import PAGE_BLOCKS
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio

WIDE, NARROW = (120, 40), (80, 24)
MakeApp = Callable[..., MtplxApp]


def prompt_of(handle: ScriptedHandle, index: int = -1) -> str:
    return bytes(handle.requests[index].prompt).decode("utf-8", "surrogatepass")


def state(app: MtplxApp) -> str:
    return lines(app, "top").split("\n")[0].split("  ")[-1].strip()


async def paste(pilot: Pilot[None], text: str) -> None:
    assert isinstance(pilot.app, MtplxApp)
    composer(pilot.app).post_message(events.Paste(text))
    await pilot.pause()


class TestSending:
    async def test_enter_sends_and_ctrl_j_breaks_the_line(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "one")
            await pilot.press("ctrl+j")
            await write(pilot, "two")
            assert composer(app).text == "one\ntwo"
            await pilot.press("enter")
            await until(pilot, lambda: handle.requests)
            assert prompt_of(handle) == "<user>|one\ntwo"
            assert handle.requests[0].source == "chat"
            assert handle.requests[0].sampling == handle.model.sampling
            assert composer(app).text == ""
            assert "▌ one\n▌ two" in transcript(app).text

    async def test_nothing_is_sent_of_blanks(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("space", "enter", "enter")
            await pilot.pause()
            assert handle.requests == []
            assert composer(app).text == " "

    async def test_a_second_message_waits_in_the_box_while_an_answer_comes(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "first")).prefill().say("an", "swer")
            composer(app).insert("second")
            await pilot.press("enter")
            assert composer(app).text == "second"
            play.finish()
            await until(pilot, lambda: state(app) == "READY")
            await pilot.press("enter")
            await until(pilot, lambda: len(handle.requests) == 2)
            assert prompt_of(handle) == "<user>|first<assistant>|answer<user>|second"

    async def test_the_answer_streams_with_its_figures(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            play = await ask(pilot, handle, "why?")
            await until(pilot, lambda: state(app) == "WAIT")
            play.prefill(2)
            await shown(pilot, "reading the prompt")
            play.prefill()
            for n in range(30):
                play.say(f" word{n}", " and", " more", drafted=4, refused=" less")
            await shown(pilot, "word29 and more▊")
            await until(pilot, lambda: state(app) == "DECODE")
            assert "30    ■■x··  3     40.0 word29 and [les…" in lines(app, "panel")
            play.finish()
            await until(pilot, lambda: state(app) == "READY")
            assert "word29 and more" in transcript(app).text
            assert "▊" not in transcript(app).text
            status = lines(app, "status")
            for figure in ("96 tok/s", "3.0/step", "acc 67%", "ctx 101/4.1k", "TTFT 0.44s"):
                assert figure in status

    async def test_markdown_is_drawn(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "code")).prefill().say("Use **it**:\n\n```py", "thon\nx = 1\n", "```\n").finish()
            await shown(pilot, "┌ python ─")
            assert "Use it:" in transcript(app).text

    async def test_a_prompt_too_long_for_the_model_comes_back(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await paste(pilot, "word " * 2000)
            await pilot.press("enter")
            await shown(pilot, "The prompt has 10007 tokens")
            assert composer(app).draft.expanded() == "word " * 2000
            assert state(app) == "READY"
            composer(app).clear()
            await ask(pilot, handle, "short")
            assert prompt_of(handle) == "<user>|short"

    async def test_a_template_that_fails_gives_the_message_back(
        self, make_app: MakeApp, handle: ScriptedHandle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from scripted_handle import ByteChat

        def broken(*_: object, **__: object) -> tuple[int, ...]:
            raise RecursionError("template")

        monkeypatch.setattr(ByteChat, "render", broken)
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "precious")
            await pilot.press("enter")
            await shown(pilot, "could not be sent: RecursionError")
            assert composer(app).text == "precious"

    async def test_an_error_in_the_middle_keeps_the_text_and_says_why(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "x")).prefill().say("half", " of")
            play.finish("error", "a logit was not finite at token 3")
            await shown(pilot, "error: a logit was not finite at token 3")
            assert "half of" in transcript(app).text


class TestStopping:
    async def test_escape_stops_and_keeps_what_came(
        self, make_app: MakeApp, handle: ScriptedHandle, store: Store
    ) -> None:
        handle.ends_on_cancel = False
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "tell")).prefill().say("Once", " upon")
            await shown(pilot, "Once upon")
            await pilot.press("escape")
            assert handle.cancelled == [play.id]
            assert state(app) == "STOPPING"
            play.say(" a", " time").finish("cancelled")
            await shown(pilot, "stopped; what came is kept")
            assert "Once upon a time" in transcript(app).text
            assert state(app) == "READY"
            await ask(pilot, handle, "go on")
            assert prompt_of(handle) == "<user>|tell<assistant>|Once upon a time<user>|go on"
            handle.ends_on_cancel = True
        answer = store.messages(store.sessions()[0].id)[1]
        assert (answer.content, answer.finish_reason) == ("Once upon a time", "cancelled")

    async def test_escape_again_while_stopping_asks_no_second_time(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        handle.ends_on_cancel = False
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "tell")).prefill()
            await until(pilot, lambda: state(app) == "PREFILL")
            await pilot.press("escape", "escape", "escape")
            assert handle.cancelled == [play.id]
            play.finish("cancelled")
            await shown(pilot, "stopped before the first token")

    async def test_a_message_is_sent_once_however_often_the_screen_beats(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await until(pilot, lambda: chat(app)._ready)
            chat(app).sending.begin(Draft("once"))
            app._beat()
            app._beat()
            await until(pilot, lambda: handle.requests)
            Play.of(handle, handle.requests[0]).prefill().say("only").finish()
            await until(pilot, lambda: chat(app).talk.turn is None)
            await until(pilot, lambda: not list(app.workers))
            assert len(handle.requests) == 1

    async def test_escape_while_idle_does_nothing(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "kept")
            await pilot.press("escape")
            assert composer(app).text == "kept"
            assert handle.cancelled == []

    async def test_ctrl_c_stops_an_answer_and_leaves_only_at_the_second_press(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        handle.ends_on_cancel = False
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "tell")).prefill()
            await until(pilot, lambda: state(app) == "PREFILL")
            await pilot.press("ctrl+c")
            assert handle.cancelled == [play.id]
            play.finish("cancelled")
            await until(pilot, lambda: state(app) == "READY")
            await pilot.press("ctrl+c")
            assert app.is_running
            await pilot.press("ctrl+c")
            await until(pilot, lambda: not app._running, "the app ends")

    async def test_leaving_in_the_middle_saves_what_came(
        self, make_app: MakeApp, handle: ScriptedHandle, store: Store
    ) -> None:
        handle.ends_on_cancel = False
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "tell")).prefill().say("Once", " upon")
            await shown(pilot, "Once")
            threading.Timer(0.2, play.finish, ["cancelled"]).start()  # as the engine would, on its thread
            await pilot.press("ctrl+q")
        assert handle.cancelled == [play.id]
        assert store.messages(store.sessions()[0].id)[1].content == "Once upon"


class TestThinking:
    async def test_it_streams_open_and_folds_when_the_answer_begins(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "2+2")).prefill()
            play.say("Add", " them", kind="reasoning").say(" up.\n", "Easy.", kind="reasoning")
            await shown(pilot, "┊ Add them up.\n  ┊ Easy.▊")
            assert "▾ thinking" in transcript(app).text
            play.say("Four", ".")
            await shown(pilot, "Four.")
            assert '▸ thought  4 tok  0.04s  "Add them up. Easy."' in transcript(app).text
            assert "┊" not in transcript(app).text

    async def test_ctrl_t_unfolds_and_folds_all(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            for question in ("one", "two"):
                play = (await ask(pilot, handle, question)).prefill()
                play.say(f"about {question}", kind="reasoning").say("ok").finish()
                await until(pilot, lambda: state(app) == "READY")
            await pilot.press("ctrl+t")
            assert "┊ about one" in transcript(app).text
            assert "┊ about two" in transcript(app).text
            await pilot.press("ctrl+t")
            assert "┊" not in transcript(app).text

    async def test_it_can_be_folded_while_it_streams(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "one")).prefill().say("hm", kind="reasoning")
            await shown(pilot, "┊ hm")
            await pilot.press("ctrl+t")
            play.say(" more", kind="reasoning")
            await shown(pilot, '▸ thinking  2 tok  0.04s  "hm more"')
            assert "┊" not in transcript(app).text

    async def test_a_click_on_its_line_folds_that_one(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "one")).prefill().say("hm", kind="reasoning").say("ok").finish()
            await shown(pilot, "▸ thought")
            row = transcript(app).text.split("\n").index(next(t for t in transcript(app).text.split("\n") if "▸" in t))
            await pilot.click(transcript(app), offset=(4, row))
            assert "┊ hm" in transcript(app).text


class TestPasting:
    async def test_a_long_paste_is_a_chip_that_is_sent_whole(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        pasted = "\n".join(f"line {n}" for n in range(30))
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "see ")
            await paste(pilot, pasted.replace("\n", "\r"))  # terminals send CR
            assert composer(app).text == "see [paste #1: 30 lines, 229 B]"
            await write(pilot, " ok")
            await pilot.press("enter")
            await until(pilot, lambda: handle.requests)
            assert prompt_of(handle) == f"<user>|see {pasted} ok"
            assert "… 10 more lines" in transcript(app).text

    async def test_a_short_paste_is_text(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await paste(pilot, "a\r\nb\rc")
            assert composer(app).text == "a\nb\nc"

    async def test_backspace_takes_a_whole_chip(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "x")
            await paste(pilot, "y" * 3000)
            await pilot.press("backspace")
            assert composer(app).text == "x"
            await pilot.press("backspace")
            assert composer(app).text == ""

    async def test_line_breaks_that_a_text_area_would_change_are_sent_as_they_are(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await paste(pilot, "a\x0cb\u2028c\x85d")
            await pilot.press("enter")
            await until(pilot, lambda: handle.requests)
            assert prompt_of(handle) == "<user>|a\x0cb\u2028c\x85d"

    async def test_a_megabyte_does_not_hold_up_the_screen(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        text = ("word " * 20 + "\n") * 10_000
        async with app.run_test(size=WIDE) as pilot:
            await paste(pilot, text)
            await write(pilot, "why?")
            assert composer(app).text == "[paste #1: 10,001 lines, 1.0 MB]why?"
            await pilot.press("enter")
            await shown(pilot, "The prompt has 1010011 tokens")
            assert composer(app).draft.expanded() == text + "why?"


class TestHistory:
    async def test_up_and_down_walk_through_earlier_prompts(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            for text in ("one", "two"):
                (await ask(pilot, handle, text)).prefill().say("ok").finish()
                await until(pilot, lambda: state(app) == "READY")
            seen = []
            for key in ("up", "up", "up", "down", "down"):
                await pilot.press(key)
                seen.append(composer(app).text)
            assert seen == ["two", "one", "one", "two", ""]

    async def test_a_huge_prompt_of_an_earlier_run_is_recalled_as_a_chip(self, make_app: MakeApp, store: Store) -> None:
        text = "word " * 100_000
        store.add_message(store.new_session("demo-13m"), "user", text)
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await until(pilot, lambda: composer(app).prompts.older() is not None)
            composer(app).prompts.leave()
            await pilot.press("up")
            assert composer(app).text == "[paste #1: 500.0 KB]"
            assert composer(app).draft.expanded() == text

    async def test_what_is_being_written_is_never_replaced(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "one")).prefill().say("ok").finish()
            await until(pilot, lambda: state(app) == "READY")
            await write(pilot, "new")
            await pilot.press("up")
            assert composer(app).text == "new"

    async def test_prompts_of_earlier_runs_are_there(self, make_app: MakeApp, store: Store) -> None:
        session = store.new_session("demo-13m")
        store.add_message(session, "user", "from yesterday")
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:

            async def recalled() -> bool:
                await pilot.press("up")
                return composer(app).text == "from yesterday"

            for _ in range(200):
                if await recalled():
                    break
                await pilot.pause(0.01)
            assert composer(app).text == "from yesterday"


class TestForeignText:
    EVIL = "\x1b]52;c;aGk=\x07 [/x] [red]\x1b[2J \x9b5n \u202e"

    async def test_what_the_model_says_can_not_drive_the_terminal(
        self, make_app: MakeApp, handle: ScriptedHandle, store: Store
    ) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            play = (await ask(pilot, handle, "go")).prefill()
            play.say(self.EVIL, " think", kind="reasoning", refused="\x1bc").say(self.EVIL, " end")
            await shown(pilot, "end")
            play.finish()
            await until(pilot, lambda: state(app) == "READY")
            await pilot.press("ctrl+t")
            drawn = _painted(app)
            assert "\x1b" not in drawn
            assert "\x07" not in drawn
            assert "\x9b" not in drawn
            assert "[/x] [red]" in drawn
        assert store.messages(store.sessions()[0].id)[1].content == self.EVIL + " end"

    async def test_what_the_user_pastes_is_drawn_safely_and_sent_as_it_is(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            await paste(pilot, "see \x1b[2J [/x] \x07")
            assert "\x1b" not in _painted(app)
            assert "␛[2J [/x] ␇" in _painted(app)
            await pilot.press("enter")
            await until(pilot, lambda: handle.requests)
            assert prompt_of(handle) == "<user>|see \x1b[2J [/x] \x07"
            await until(pilot, lambda: "\x1b" not in _painted(app) and "see ␛[2J" in transcript(app).text)
            (Play.of(handle, handle.requests[0])).prefill().finish()
            await until(pilot, lambda: state(app) == "READY")
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen_stack) == 3)
            await pilot.pause()
            assert "\x1b" not in _painted(app)
            assert "[/x]" in _painted(app)

    async def test_a_reason_that_a_server_gives_can_not_either(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=NARROW, notifications=True) as pilot:
            for room in ("f2", "f7"):
                await pilot.press(room)
                app.screen.notify(f"first {self.EVIL}")
                app.screen.notify(f"second {self.EVIL}", title=self.EVIL)
                await until(pilot, lambda: "second" in _painted(app))
                drawn = _painted(app)
                assert not [c for c in drawn if c < " " and c != "\n"]
                assert "[red]" in drawn
                assert "first" not in drawn, "a later word takes the place of the one before"

    async def test_a_request_from_outside_can_not_either(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            Play.outside(handle, "\x1b[2Jr", "a\x1bpi").prefill().say("\x1b]0;x\x07")
            await until(pilot, lambda: "a␛pi" in lines(app, "panel"))
            assert "\x1b" not in _painted(app)


def _painted(app: MtplxApp) -> str:
    """Every character of the screen as it is drawn, styles aside."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in strips)


class TestChats:
    async def test_a_saved_chat_is_resumed(self, make_app: MakeApp, handle: ScriptedHandle, store: Store) -> None:
        session = store.new_session("demo-13m")
        store.add_message(session, "user", "Why [/x]?")
        store.add_message(session, "assistant", "Because **so**.", "hm", {"usage": {"reasoning_tokens": 7}}, "stop")
        store.add_message(session, "user", "And?")
        store.add_message(session, "assistant", "It was cut", "", None, None)
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen_stack) == 3)
            await pilot.press("enter")
            await shown(pilot, "Because so.")
            assert '▸ thought  7 tok  "hm"' in transcript(app).text
            assert "interrupted: the program ended" in transcript(app).text
            (await ask(pilot, handle, "more")).prefill().say("sure").finish()
            assert prompt_of(handle) == (
                "<user>|Why [/x]?<assistant>hm|Because **so**.<user>|And?<assistant>|It was cut<user>|more"
            )
            await until(pilot, lambda: len(store.messages(session)) == 6)
        assert len(store.sessions()) == 1

    async def test_leaving_the_list_changes_nothing(self, make_app: MakeApp, store: Store) -> None:
        store.add_message(store.new_session("demo-13m"), "user", "old")
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen_stack) == 3)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 2)
            assert "Ask something" in transcript(app).text

    async def test_an_empty_list_says_so(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen_stack) == 3)
            await pilot.pause()
            assert "No chat is saved yet" in _painted(app)

    async def test_a_new_chat_forgets_the_old_one_and_keeps_it_saved(
        self, make_app: MakeApp, handle: ScriptedHandle, store: Store
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "old")).prefill().say("ok").finish()
            await until(pilot, lambda: state(app) == "READY")
            await pilot.press("ctrl+n")
            assert "old" not in transcript(app).text
            (await ask(pilot, handle, "new")).prefill().say("ok").finish()
            assert prompt_of(handle) == "<user>|new"
            await until(pilot, lambda: len(store.sessions()) == 2)
        assert {s.title for s in store.sessions()} == {"old", "new"}

    async def test_chats_are_not_switched_under_a_running_answer(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "old")).prefill().say("answer")
            await pilot.press("ctrl+n", "ctrl+o")
            await pilot.pause()
            assert "old" in transcript(app).text
            assert len(app.screen_stack) == 2

    async def test_a_store_that_refuses_is_said_and_the_chat_goes_on(
        self, make_app: MakeApp, handle: ScriptedHandle, store: Store, tmp_path: Path
    ) -> None:
        app = make_app()
        other = sqlite3.connect(store.path, isolation_level=None)
        async with app.run_test(size=WIDE) as pilot:
            await pilot.pause()
            other.execute("BEGIN EXCLUSIVE")
            (await ask(pilot, handle, "kept on screen")).prefill().say("all", " here").finish()
            await until(pilot, lambda: "not saved" in lines(app, "status"))
            await until(pilot, lambda: any("locked" in note.message for note in app._notifications), "and why")
            assert "not saved:" in lines(app, "panel")
            assert "all here" in transcript(app).text
            other.execute("ROLLBACK")
            other.close()
            await until(pilot, lambda: "not saved" not in lines(app, "status"), "it is saved once the store is free")
        assert store.messages(store.sessions()[0].id)[1].content == "all here"

    async def test_a_notice_of_the_store_is_shown(self, handle: ScriptedHandle, clock: Clock, tmp_path: Path) -> None:
        (tmp_path / "bad.db").write_bytes(b"not a database at all" * 100)
        store = Store(tmp_path / "bad.db")
        app = MtplxApp(LocalLink(handle), store, lambda: "", clock=clock)
        async with app.run_test(size=WIDE) as pilot:
            await shown(pilot, "were damaged")
        store.close()


class TestLoading:
    async def test_a_message_typed_while_loading_is_sent_when_ready(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        handle.state = "loading"
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            assert state(app) == "LOADING"
            await write(pilot, "early")
            await pilot.press("enter")
            handle.emit(LoadEvent(1.0, "reading weights"))
            await shown(pilot, "reading weights; this is sent when it is ready")
            assert handle.requests == []
            handle.state = "ready"
            handle.emit(ReadyEvent(2.0, "demo-13m"))
            await until(pilot, lambda: handle.requests)
            assert prompt_of(handle) == "<user>|early"

    async def test_a_model_that_is_handed_out_after_ready_is_waited_for(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        handle.model_is_late = True
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            composer(app).insert("early")
            await pilot.press("enter")
            await shown(pilot, "this is sent when it is ready")
            handle.model_is_late = False
            await until(pilot, lambda: handle.requests)
            await until(pilot, lambda: "demo-13m" in lines(app, "top"))

    async def test_escape_takes_a_waiting_message_back(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        handle.state = "loading"
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "early")
            await pilot.press("enter")
            await pilot.press("escape")
            assert composer(app).text == "early"
            assert "early" not in transcript(app).text
            handle.state = "ready"
            await until(pilot, lambda: state(app) == "READY")
            assert handle.requests == []

    async def test_a_failed_load_says_why_and_what_next_and_keeps_the_message(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        handle.state = "loading"
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "early")
            await pilot.press("enter")
            handle.state = "failed"
            await shown(pilot, "error: There is no model called 'nope'. Bundled: demo-13m.")
            assert "mtplx-tui --model NAME" in transcript(app).text
            assert state(app) == "FAILED"
            assert composer(app).text == "early"
            await pilot.press("enter")
            assert composer(app).text == "early"


class TestOutsideRequests:
    async def test_they_are_shown_live_with_their_source(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            play = Play.outside(handle, "r9f3a77", "api", prompt_tokens=100)
            await until(pilot, lambda: "api   r9f3a WAIT    #1" in lines(app, "panel"))
            play.prefill(62)
            await until(pilot, lambda: "PREFILL  62%" in lines(app, "panel"))
            for _ in range(10):
                play.say("a", "b", "c")
            await until(pilot, lambda: "DECODE  30 tok" in lines(app, "panel"))
            assert "10    ■■x··" in lines(app, "panel")
            assert state(app) == "READY +1 outside"
            play.finish()
            await until(pilot, lambda: "0 running" in lines(app, "panel"))

    async def test_a_narrow_screen_shows_them_in_its_status_line(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            Play.outside(handle, "r9f3a77", "api").prefill().say("a", "b").say("a", "b")
            await until(pilot, lambda: "api r9f3a" in lines(app, "status"))

    async def test_beside_the_chats_own_answer(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            own = (await ask(pilot, handle, "mine")).prefill()
            other = Play.outside(handle, "r9f3a77", "api").prefill()
            other.say("theirs")
            own.say("ours")
            await shown(pilot, "ours")
            await until(pilot, lambda: "2 running" in lines(app, "panel"))
            assert "theirs" not in transcript(app).text
            assert "theirs" not in lines(app, "panel")
            assert "+1 more" in lines(app, "status")


class TestView:
    async def test_the_panel_goes_and_comes(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            panel = chat(app).query_one("#panel")
            assert panel.display
            width = transcript(app).size.width
            await pilot.press("ctrl+l")
            await until(pilot, lambda: not panel.display and transcript(app).size.width > width)
            await pilot.press("ctrl+l")
            await until(pilot, lambda: panel.display and transcript(app).size.width == width)

    async def test_under_110_columns_there_is_no_panel(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=(109, 40)) as pilot:
            assert not chat(app).query_one("#panel").display
            await pilot.press("ctrl+l")
            assert not chat(app).query_one("#panel").display
            await pilot.resize_terminal(110, 40)
            await until(pilot, lambda: chat(app).query_one("#panel").display)

    @pytest.mark.parametrize("size", [(79, 24), (80, 23), (30, 8)])
    async def test_a_terminal_too_small_says_what_is_needed_and_loses_nothing(
        self, make_app: MakeApp, size: tuple[int, int]
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await write(pilot, "kept")
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: f"{size[0]}x{size[1]}" in _painted(app))
            assert "80x24" in _painted(app)
            await pilot.resize_terminal(*NARROW)
            await until(pilot, lambda: "80x24" not in _painted(app))
            assert composer(app).text == "kept"

    async def test_it_follows_until_the_user_scrolls_and_again_at_the_end(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            play = (await ask(pilot, handle, "long")).prefill()
            for n in range(60):
                play.say(f"line {n}\n")
            await shown(pilot, "line 59")
            assert "line 59" in _painted(app)
            await pilot.press("pageup")
            place = transcript(app).scroll_y
            play.say("line 60\n", "line 61\n")
            await shown(pilot, "line 61")
            assert transcript(app).scroll_y == place
            await until(pilot, lambda: "^End follows" in lines(app, "status"))
            await pilot.press("pagedown")
            assert transcript(app).following
            play.say("line 62\n", "line 63\n")
            await shown(pilot, "line 63")
            assert "line 63" in _painted(app)
            play.finish()
            await until(pilot, lambda: state(app) == "READY")
            assert transcript(app).scroll_y == transcript(app).max_scroll_y
            assert "line 63" in _painted(app)

    async def test_the_wheel_scrolls(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "long")).prefill().say("\n\n".join(str(n) for n in range(60))).finish()
            await shown(pilot, "59")
            bottom = transcript(app).scroll_y
            view = transcript(app)
            view.post_message(events.MouseScrollUp(view, 5, 5, 0, 0, 0, False, False, False))
            await until(pilot, lambda: view.scroll_y < bottom)
            assert not view.following

    async def test_a_resize_lays_out_every_message_again(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            text = "word " * 100
            (await ask(pilot, handle, "long")).prefill().say(text).finish()
            await shown(pilot, "word word")
            await pilot.resize_terminal(*NARROW)
            await until(pilot, lambda: max(len(line) for line in transcript(app).text.split("\n")) > 72)
            assert transcript(app).text.count("word") == 100

    async def test_text_is_selected_with_the_mouse_and_copied(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            (await ask(pilot, handle, "say")).prefill().say("one two\n", "three four").finish()
            await shown(pilot, "three four")
            rows = transcript(app).text.split("\n")
            first = rows.index("  one two")
            await pilot.mouse_down(transcript(app), offset=Offset(6, first))
            await pilot.hover(transcript(app), offset=Offset(6, first + 1))
            await pilot.mouse_up(transcript(app), offset=Offset(6, first + 1))
            await pilot.press("ctrl+c")
            assert app.clipboard == "two\n  three"

    async def test_help_explains_keys_and_figures(self, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            await pilot.press("f1")
            await until(pilot, lambda: "^L" in _painted(app))
            for word in ("^N", "^O", "^T", "^L", "Esc", "tok/s", "given that those before held", "(k and j too)"):
                assert word in app.screen.query_one("#page", Lines).text
            await pilot.press("end")
            await until(pilot, lambda: "so does typing" in _painted(app))
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 2)

    async def test_a_theme_chosen_while_running_repaints_everything(
        self, make_app: MakeApp, handle: ScriptedHandle
    ) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            (await ask(pilot, handle, "hi")).prefill().say("some *text*").finish()
            await until(pilot, lambda: state(app) == "READY")
            app.theme = LIGHT.name
            await pilot.pause()
            backgrounds = {
                segment.style.bgcolor.name
                for strip in app.screen._compositor.render_strips()
                for segment in strip
                if segment.style is not None and segment.style.bgcolor is not None and segment.text.strip()
            }
            assert backgrounds == {LIGHT.background}


class TestCost:
    async def test_an_idle_screen_paints_nothing(self, make_app: MakeApp, handle: ScriptedHandle) -> None:
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            (await ask(pilot, handle, "hi")).prefill().say("ok").finish()
            await until(pilot, lambda: "saved" in lines(app, "panel") and state(app) == "READY")
            painted = 0

            def count() -> None:
                nonlocal painted
                painted += 1

            app.post_display_hook = count  # type: ignore[method-assign]
            for _ in range(5):  # a busy machine is late with what the answer still has to paint
                painted = 0
                await asyncio.sleep(1.2)
                if not painted:
                    break
            assert painted == 0

    async def test_a_long_chat_opens_at_its_end_and_older_messages_come_as_one_scrolls(
        self, make_app: MakeApp, store: Store
    ) -> None:
        session = store.new_session("demo-13m")
        for n in range(100):
            store.add_message(session, "user", f"question {n}")
            store.add_message(session, "assistant", f"answer {n} " * 20, "", None, "stop")
        app = make_app()
        async with app.run_test(size=WIDE) as pilot:
            await pilot.press("ctrl+o")
            await until(pilot, lambda: len(app.screen_stack) == 3)
            await pilot.press("enter")
            await shown(pilot, "question 99")
            assert transcript(app).text.count("question") == PAGE_BLOCKS // 2
            for _ in range(400):
                await pilot.press("pageup")
                if "question 0\n" in transcript(app).text:
                    break
            assert "question 0\n" in transcript(app).text

    async def test_the_interpreter_is_tuned_while_the_screen_is_up_and_as_before_afterwards(
        self, make_app: MakeApp
    ) -> None:
        before = (gc.get_threshold(), sys.getswitchinterval())
        app = make_app()
        async with app.run_test(size=NARROW) as pilot:
            await until(pilot, lambda: sys.getswitchinterval() < 0.001)
            await until(pilot, lambda: gc.get_freeze_count() > 0, "what is there to stay is never traversed again")
        assert (gc.get_threshold(), sys.getswitchinterval()) == before
        assert gc.get_freeze_count() == 0
