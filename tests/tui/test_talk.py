"""A conversation with versions: what is sent, what is kept, and what comes back."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from scripted_handle import Clock, Play, ScriptedHandle

from mtplx_tui.bridge import Bridge
from mtplx_tui.conversation import Phase
from mtplx_tui.drafts import Draft
from mtplx_tui.glyphs import UNICODE
from mtplx_tui.link import LocalLink
from mtplx_tui.recorder import Recorder
from mtplx_tui.store import Store
from mtplx_tui.talk import Talk, Turn
from mtplx_tui.widgets.blocks import Answer, UserMessage

pytestmark = pytest.mark.anyio


def wait(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.005)


@pytest.fixture
def talk(handle: ScriptedHandle, store: Store) -> Iterator[Talk]:
    link = LocalLink(handle)
    bridge, recorder = Bridge(link), Recorder(store, checkpoint_s=0.01)
    yield Talk(link, bridge, recorder)
    recorder.close(timeout=0.2)
    bridge.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def user(text: str) -> UserMessage:
    return UserMessage(text, datetime(2026, 1, 5))


async def answered(talk: Talk, handle: ScriptedHandle, turn: Turn, text: str) -> str:
    """Send a turn and answer it; gives the prompt that the engine got."""
    assert await talk.submit(turn) is None
    request = handle.requests[-1]
    Play.of(handle, request).prefill().say(text).finish()
    assert talk.take(talk._bridge.pull()) is not None
    return bytes(request.prompt).decode()


async def said(talk: Talk, handle: ScriptedHandle, text: str, answer: str) -> str:
    turn = talk.begin(Draft(text), user(text), Answer(UNICODE, live=True))
    return await answered(talk, handle, turn, answer)


def shown(store: Store) -> list[tuple[str, int, int]]:
    (session,) = store.sessions()
    return [(row.content, row.version, row.versions) for row in store.messages(session.id)]


async def test_another_answer_is_another_version(talk: Talk, handle: ScriptedHandle, store: Store) -> None:
    first = await said(talk, handle, "q1", "a1")
    again = await answered(talk, handle, talk.begin_again(1, Answer(UNICODE, live=True)), "b1")
    assert again == first
    wait(lambda: store.sessions() and shown(store) == [("q1", 1, 1), ("b1", 2, 2)])
    third = await said(talk, handle, "q2", "a2")
    assert "b1" in third
    assert "a1" not in third
    wait(lambda: shown(store) == [("q1", 1, 1), ("b1", 2, 2), ("q2", 1, 1), ("a2", 1, 1)])


async def test_another_question_is_another_version_with_what_follows(
    talk: Talk, handle: ScriptedHandle, store: Store
) -> None:
    await said(talk, handle, "q1", "a1")
    await said(talk, handle, "q2", "a2")
    turn = talk.begin_instead(0, Draft("other"), user("other"), Answer(UNICODE, live=True))
    prompt = await answered(talk, handle, turn, "c1")
    assert "q1" not in prompt
    assert "a1" not in prompt
    wait(lambda: shown(store) == [("other", 2, 2), ("c1", 1, 1)])
    (session,) = store.sessions()
    store.version(session.id, store.messages(session.id)[0].id, -1)
    assert [text for text, _, _ in shown(store)] == ["q1", "a1", "q2", "a2"]


async def test_what_could_not_be_sent_leaves_the_path_as_it_was(talk: Talk, handle: ScriptedHandle) -> None:
    await said(talk, handle, "q1", "a1")
    turn = talk.begin_again(1, Answer(UNICODE, live=True))
    talk.withdraw(turn)
    assert [each.content for each in talk.conversation.said] == ["q1", "a1"]
    turn = talk.begin_instead(0, Draft("x" * 9000), user("x"), Answer(UNICODE, live=True))
    assert await talk.submit(turn) is not None, "it is longer than the context"
    assert talk.withdraw(turn).text == "x" * 9000
    assert [each.content for each in talk.conversation.said] == ["q1", "a1"]


async def test_the_system_prompt_and_the_settings_of_a_session_hold_and_are_kept(
    talk: Talk, handle: ScriptedHandle, store: Store
) -> None:
    talk.conversation.session.system = "Be brief."
    talk.conversation.session.options = {"temperature": 0.0, "max_tokens": 7, "seed": 3}
    prompt = await said(talk, handle, "q1", "a1")
    assert "Be brief." in prompt
    request = handle.requests[-1]
    assert (request.sampling.temperature, request.max_tokens, request.seed) == (0.0, 7, 3)
    assert request.sampling.top_k == handle.model.sampling.top_k
    wait(lambda: store.sessions())
    facts = store.facts(store.sessions()[0].id)
    assert (facts.system, facts.options) == ("Be brief.", {"temperature": 0.0, "max_tokens": 7, "seed": 3})
    talk.resume(facts, store.messages(facts.id))
    assert "Be brief." in await said(talk, handle, "q2", "a2")
    assert handle.requests[-1].max_tokens == 7


async def test_a_question_that_the_engine_has_just_taken_in_is_stopped_there(
    talk: Talk, handle: ScriptedHandle
) -> None:
    """Nothing was heard of it yet; taken for one that is still being read, it would have run on behind one's back."""
    turn = talk.begin(Draft("q"), user("q"), Answer(UNICODE, live=True))
    turn.phase = Phase.RENDERING
    assert not talk.stop(), "the engine does not have it yet"
    assert await talk.submit(turn) is None
    assert talk.stop()
    assert handle.cancelled == [handle.requests[-1].id]
    finish = talk.take(talk._bridge.pull())
    assert finish is not None
    assert finish.reason == "cancelled"
