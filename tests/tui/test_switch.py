"""Another model in place of the present one: listeners stay, answers end, and a failure leads back."""

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import EngineClosedError, EngineError
from engine.events import Event, FailedEvent, FinishEvent, LoadEvent, ReadyEvent, TokenEvent
from engine.handle import EngineHandle, EventSink
from engine.request import Request
from mtplx_tui.switch import Choice, SwitchableEngine

WAIT = 60.0
DEMO = Choice("demo-13m", "mtp")
PLAIN = Choice("demo-13m", "ar")
NOWHERE = Choice("no-such-model", "mtp")
Heard = "queue.SimpleQueue[Event]"


def start(choice: Choice, on_event: EventSink) -> EngineHandle:
    return ThreadEngine(EngineConfig(model=choice.model, mode=choice.mode), on_event)


@pytest.fixture
def heard() -> "queue.SimpleQueue[Event]":
    return queue.SimpleQueue()


@pytest.fixture
def engine(heard: "queue.SimpleQueue[Event]") -> Iterator[SwitchableEngine]:
    engine = SwitchableEngine(start, DEMO)
    engine.wait_ready(WAIT)
    engine.listen(heard.put)
    yield engine
    engine.close(30)


def until(heard: "queue.SimpleQueue[Event]", *kinds: type[Event]) -> list[Event]:
    """All that came up to the first of these."""
    events = [heard.get(timeout=WAIT)]
    while not isinstance(events[-1], kinds):
        events.append(heard.get(timeout=WAIT))
    return events


def ask(engine: SwitchableEngine, max_tokens: int) -> Request:
    request = Request(prompt=engine.chat.render([{"role": "user", "content": "hi"}]), max_tokens=max_tokens,
                      ignore_eos=True)  # fmt: skip
    engine.submit(request, lambda _: None)
    return request


def test_the_next_model_answers_the_same_listeners(engine: SwitchableEngine, heard: "queue.SimpleQueue[Event]") -> None:
    engine.load(PLAIN)
    events = until(heard, ReadyEvent)
    assert any(isinstance(event, LoadEvent) and "unloading demo-13m" in event.stage for event in events)
    assert (engine.state, engine.model.mode) == ("ready", "ar")
    request = ask(engine, 3)
    finish = until(heard, FinishEvent)[-1]
    assert isinstance(finish, FinishEvent)
    assert (finish.request_id, finish.reason) == (request.id, "length")


def test_an_answer_that_runs_ends_as_cancelled(engine: SwitchableEngine, heard: "queue.SimpleQueue[Event]") -> None:
    request = ask(engine, 3000)
    until(heard, TokenEvent)
    engine.load(PLAIN)
    finish = until(heard, FinishEvent)[-1]
    assert isinstance(finish, FinishEvent)
    assert (finish.request_id, finish.reason) == (request.id, "cancelled")
    until(heard, ReadyEvent)


def test_a_model_that_can_not_be_loaded_leads_back(engine: SwitchableEngine, heard: "queue.SimpleQueue[Event]") -> None:
    engine.load(NOWHERE)
    events = until(heard, ReadyEvent, FailedEvent)
    assert isinstance(events[-1], ReadyEvent)
    (why,) = [event for event in events if isinstance(event, LoadEvent) and "Going back to demo-13m" in event.stage]
    assert "no-such-model" in why.stage
    assert (engine.state, engine.model.name) == ("ready", "demo-13m")


def test_a_failure_without_a_way_back_says_why_and_another_may_follow(heard: "queue.SimpleQueue[Event]") -> None:
    engine = SwitchableEngine(start, NOWHERE)
    with pytest.raises(EngineError, match="no-such-model"):
        engine.wait_ready(WAIT)
    engine.listen(heard.put)
    engine.load(Choice("another-one", "mtp"))
    failed = until(heard, ReadyEvent, FailedEvent)[-1]
    assert isinstance(failed, FailedEvent)
    assert "another-one" in failed.error
    assert engine.state == "failed"
    engine.load(DEMO)
    until(heard, ReadyEvent)
    assert engine.model.name == "demo-13m"
    assert engine.close(30)


def test_an_unloaded_model_gives_its_memory_back_and_can_come_again(
    engine: SwitchableEngine, heard: "queue.SimpleQueue[Event]"
) -> None:
    gone = weakref.ref(engine._engine.result())
    engine.unload()
    assert engine._switcher is not None
    engine._switcher.join(WAIT)
    assert engine.state == "closed"
    with pytest.raises(EngineClosedError, match="Choose one in Models"):
        _ = engine.model
    engine.load(DEMO)
    until(heard, ReadyEvent)
    assert engine.model.name == "demo-13m"
    gc.collect()
    assert gone() is None


def test_one_switch_at_a_time(heard: "queue.SimpleQueue[Event]") -> None:
    hold = threading.Event()

    def held(choice: Choice, on_event: EventSink) -> EngineHandle:
        if choice == PLAIN:
            hold.wait(WAIT)
        return start(choice, on_event)

    engine = SwitchableEngine(held, DEMO)
    engine.wait_ready(WAIT)
    engine.listen(heard.put)
    engine.load(PLAIN)
    assert engine.state == "loading"
    for another in (lambda: engine.load(DEMO), engine.unload):
        refused: Callable[[], None] = another
        with pytest.raises(EngineError, match="being loaded"):
            refused()
    with pytest.raises(EngineError, match="still loading"):
        _ = engine.chat
    hold.set()
    until(heard, ReadyEvent)
    assert engine.close(30)
    with pytest.raises(EngineClosedError):
        engine.load(DEMO)


def test_the_server_goes_on_with_the_next_model(engine: SwitchableEngine, heard: "queue.SimpleQueue[Event]") -> None:
    import httpx

    from server.run import ServerThread

    server = ServerThread(engine, port=0)
    server.start()
    try:
        engine.load(PLAIN)
        until(heard, ReadyEvent)
        body = {"model": "demo-13m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        answer = httpx.post(f"{server.address}/v1/chat/completions", json=body, timeout=WAIT)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 3
    finally:
        server.stop()
