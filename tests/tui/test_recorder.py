"""The record of a chat: in order, soon, and through failures of the store."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_handle import Clock, Play, ScriptedHandle

from engine.request import Request
from mtplx_tui.recorder import MessageRef, Recorder, ResultRecord, SessionRef, TurnRecord
from mtplx_tui.store import MessageRow, Store
from mtplx_tui.tools.calls import ToolCall


def wait(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.01)


@pytest.fixture
def recorder(store: Store) -> Iterator[Recorder]:
    recorder = Recorder(store, checkpoint_s=0.02, retry_s=0.05)
    yield recorder
    recorder.close(timeout=0.2)


@pytest.fixture
def begin(recorder: Recorder, handle: ScriptedHandle) -> Callable[..., tuple[TurnRecord, Play]]:
    session = SessionRef("demo-13m")

    def begin(text: str = "hello", ref: SessionRef = session) -> tuple[TurnRecord, Play]:
        record = TurnRecord(ref, text)
        request = Request(prompt=(1, 2, 3))
        handle.submit(request, record.on_event)
        recorder.start(record)
        return record, Play.of(handle, request).prefill()

    return begin


def rows(store: Store) -> list[MessageRow]:
    return [row for session in store.sessions() for row in store.messages(session.id)]


def test_the_message_is_stored_before_the_answer_comes(
    store: Store, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    begin("what is 2 + 2?")
    wait(lambda: rows(store))
    assert (rows(store)[0].role, rows(store)[0].content) == ("user", "what is 2 + 2?")


def test_an_answer_is_checkpointed_while_it_streams(
    store: Store, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    _, play = begin()
    play.say("I ", "think", kind="reasoning").say("fo", "ur")
    wait(lambda: len(rows(store)) == 2 and rows(store)[1].content == "four")
    answer = rows(store)[1]
    assert (answer.reasoning, answer.finish_reason, answer.stats) == ("I think", None, None)


def test_the_end_is_stored_with_its_figures(store: Store, begin: Callable[..., tuple[TurnRecord, Play]]) -> None:
    _, play = begin()
    play.say("fo", "ur").finish("cancelled")
    wait(lambda: len(rows(store)) == 2 and rows(store)[1].finish_reason)
    answer = rows(store)[1]
    assert (answer.content, answer.finish_reason) == ("four", "cancelled")
    assert answer.stats is not None
    assert answer.stats["usage"]["completion_tokens"] == 2
    assert answer.stats["decode_tok_s"] == 96.0


def test_turns_share_a_session_that_exists_only_once_something_was_said(
    store: Store, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    assert store.sessions() == []
    for text in ("one", "two"):
        _, play = begin(text)
        play.say("ok").finish()
    wait(lambda: len(rows(store)) == 4 and rows(store)[3].finish_reason)
    assert [row.content for row in rows(store)] == ["one", "ok", "two", "ok"]


def test_text_is_stored_exactly_as_it_was(store: Store, begin: Callable[..., tuple[TurnRecord, Play]]) -> None:
    _, play = begin("esc \x1b[31m [/x] \ud800 \x00 end")
    play.say("\x1b]52;c;x\x07", "\r\n").say("<tool>", kind="tool").finish()
    wait(lambda: len(rows(store)) == 2 and rows(store)[1].finish_reason)
    assert rows(store)[0].content == "esc \x1b[31m [/x] \ud800 \x00 end"
    assert rows(store)[1].content == "\x1b]52;c;x\x07\r\n"
    assert (rows(store)[1].stats or {})["tool"] == "<tool>"


def test_a_locked_store_is_said_and_everything_is_saved_once_it_is_free(
    store: Store, recorder: Recorder, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    _, play = begin("kept")
    play.say("all ", "of it").finish()
    wait(lambda: recorder.problem)
    assert recorder.problem
    other.execute("ROLLBACK")
    other.close()
    wait(lambda: recorder.problem is None and len(rows(store)) == 2 and rows(store)[1].finish_reason)
    assert [row.content for row in rows(store)] == ["kept", "all of it"]


@pytest.mark.parametrize("said_first", ["nothing", "half", "all"])
def test_a_chat_that_was_deleted_meanwhile_goes_on_as_another_and_holds_up_no_other(
    said_first: str, store: Store, recorder: Recorder, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    session = SessionRef("demo-13m", system="be brief")
    first, play = begin("one", session)
    if said_first != "nothing":
        play.say("half")
        wait(lambda: [row.content for row in rows(store)] == ["one", "half"])
    if said_first == "all":
        play.finish()
        wait(lambda: first.over)
    wait(lambda: session.id is not None and store.messages(session.id))
    store.delete(session.id or 0)
    if said_first == "all":
        _, play = begin("two", session)
    play.say(" more").finish()
    wait(lambda: rows(store) and rows(store)[-1].finish_reason)
    kept = {"nothing": ["one", " more"], "half": ["one", "half more"], "all": ["two", " more"]}
    assert [row.content for row in rows(store)] == kept[said_first]
    assert [store.facts(row.id).system for row in store.sessions()] == ["be brief"]
    begin("other", SessionRef("demo-13m"))[1].say("ok").finish()
    wait(lambda: len(rows(store)) == 4)
    assert recorder.problem is None


def test_the_result_of_a_call_is_saved_though_its_chat_was_deleted(store: Store, recorder: Recorder) -> None:
    session, call = SessionRef("demo-13m", store.new_session("demo-13m")), ToolCall("c1", "time", "{}")
    store.delete(session.id or 0)
    call.end("done", "16:02")
    recorder.start(ResultRecord(session, call, MessageRef(7), MessageRef()))
    wait(lambda: rows(store))
    assert [(row.role, row.content) for row in rows(store)] == [("tool", "16:02")]


def test_reads_come_after_what_is_to_be_saved(
    recorder: Recorder, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    begin("first")
    assert [s.title for s in recorder.call(Store.sessions).result(timeout=10)] == ["first"]


def test_closing_waits_for_the_end_of_a_cancelled_answer(tmp_path: Path, handle: ScriptedHandle, clock: Clock) -> None:
    store = Store(tmp_path / "closing.db")
    recorder = Recorder(store)
    record = TurnRecord(SessionRef("demo-13m"), "hello")
    request = Request(prompt=(1,))
    handle.submit(request, record.on_event)
    recorder.start(record)
    Play.of(handle, request).prefill().say("par", "tial").finish("cancelled")
    assert recorder.close()
    assert (rows(store)[1].content, rows(store)[1].finish_reason) == ("partial", "cancelled")
    store.close()


def test_closing_does_not_wait_for_ever_for_an_answer_without_end(
    store: Store, recorder: Recorder, begin: Callable[..., tuple[TurnRecord, Play]]
) -> None:
    _, play = begin()
    play.say("half")
    wait(lambda: len(rows(store)) == 2)
    assert not recorder.close(timeout=0.3)
    assert (rows(store)[1].content, rows(store)[1].finish_reason) == ("half", None)
