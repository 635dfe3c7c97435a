"""An engine that fails is started again, a few times; what it had ends with errors, and nobody waits for ever."""

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
import tiny_models

from engine import supervised
from engine.collect import complete
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import EngineClosedError, EngineError, ModelNotFoundError
from engine.events import Event, FailedEvent, FinishEvent, LoadEvent, ReadyEvent, TokenEvent
from engine.request import Request, Sampling
from engine.supervised import MOST_RESTARTS, SupervisedEngine

WAIT = 60.0
PROMPT = (5, 6, 7)
GREEDY = Sampling(temperature=0.0)


class Boom(Exception):
    """Raised on purpose."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tiny_models.save(tmp_path_factory.mktemp("supervised") / "model", tiny_models.make("llama"))
    return EngineConfig(str(folder))


@pytest.fixture
def heard() -> "queue.SimpleQueue[Event]":
    return queue.SimpleQueue()


@pytest.fixture
def engine(config: EngineConfig, heard: "queue.SimpleQueue[Event]") -> Iterator[SupervisedEngine]:
    engine = SupervisedEngine(partial(ThreadEngine, config), heard.put)
    engine.wait_ready(WAIT)
    yield engine
    assert engine.close(30)


def break_loop(engine: SupervisedEngine) -> None:
    """Let the loop of the present engine fail in its next turn, which comes twice a second at least."""

    def fail() -> None:
        raise Boom("out of the loop")

    runner = engine._made.result()._runner
    assert runner is not None
    runner.turn = fail  # type: ignore[method-assign]


def next_of(heard: "queue.SimpleQueue[Event]", *kinds: type[Event]) -> Event:
    while not isinstance(event := heard.get(timeout=WAIT), kinds):
        pass
    return event


def test_what_an_engine_had_ends_with_an_error_and_the_next_one_answers_the_same(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]"
) -> None:
    next_of(heard, ReadyEvent)
    before = complete(engine, Request(PROMPT, GREEDY, max_tokens=8))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(PROMPT, GREEDY, ignore_eos=True, id="hit"), events.put)
    next_of(events, TokenEvent)
    break_loop(engine)
    finish = next_of(events, FinishEvent)
    assert isinstance(finish, FinishEvent)
    assert finish.reason == "error"
    assert "out of the loop" in (finish.error or "")
    assert events.empty()
    reason = next_of(heard, LoadEvent, ReadyEvent, FailedEvent)
    assert isinstance(reason, LoadEvent)
    assert "out of the loop" in reason.stage
    next_of(heard, ReadyEvent)
    assert engine.state == "ready"
    assert engine.restarts == 1
    assert complete(engine, Request(PROMPT, GREEDY, max_tokens=8, id="after")).ids == before.ids
    assert engine.heartbeat_age() < WAIT


def test_while_it_is_loaded_again_it_is_loading_as_at_first(
    engine: SupervisedEngine,
    heard: "queue.SimpleQueue[Event]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_of(heard, ReadyEvent)
    gate, load = threading.Event(), ThreadEngine._load

    def late(self: ThreadEngine) -> object:
        assert gate.wait(WAIT)
        return load(self)

    monkeypatch.setattr(ThreadEngine, "_load", late)
    break_loop(engine)
    next_of(heard, LoadEvent)
    assert engine.state == "loading"
    with pytest.raises(EngineError, match="loading"):
        engine.model  # noqa: B018
    with pytest.raises(EngineError, match="loading"):
        engine.submit(Request(PROMPT), lambda event: None)
    with pytest.raises(TimeoutError):
        engine.wait_ready(0.01)
    engine.cancel("nobody")
    gate.set()
    assert engine.wait_ready(WAIT).context == 1024


def test_the_old_weights_are_gone_before_the_new_ones_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.make("llama", hidden_size=512, intermediate_size=2048))
    held: list[int] = []
    ready = threading.Semaphore(0)

    def hear(event: Event) -> None:
        if isinstance(event, LoadEvent | ReadyEvent):
            held.append(mx.get_active_memory())
        if isinstance(event, ReadyEvent):
            ready.release()

    # the test's own record of the log would hold the traceback, and with it the engine
    monkeypatch.setattr(logging.getLogger("engine.engine"), "disabled", True)
    begun = mx.get_active_memory()
    with closing(SupervisedEngine(partial(ThreadEngine, EngineConfig(str(folder))), hear)) as engine:
        assert ready.acquire(timeout=WAIT)
        weights = engine.model.weight_bytes
        assert mx.get_active_memory() - begun > 0.9 * weights
        first, held[:] = max(held) - begun, []
        break_loop(engine)
        assert ready.acquire(timeout=WAIT)
    assert held[1] - begun < 0.1 * weights, "with the first word of the new engine"
    assert max(held[1:]) - begun < 1.1 * first


def test_an_engine_that_fails_too_often_stays_failed_and_says_why(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]"
) -> None:
    for number in range(MOST_RESTARTS):
        next_of(heard, ReadyEvent)
        assert engine.restarts == number
        break_loop(engine)
    next_of(heard, ReadyEvent)
    break_loop(engine)
    last = next_of(heard, FailedEvent, ReadyEvent)
    assert isinstance(last, FailedEvent)
    assert "out of the loop" in last.error
    assert (engine.state, engine.restarts) == ("failed", MOST_RESTARTS)
    with pytest.raises(EngineError, match="out of the loop"):
        engine.wait_ready(WAIT)


def test_failures_of_long_ago_do_not_count(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "WITHIN_S", 0.0)
    for _ in range(MOST_RESTARTS + 2):
        next_of(heard, ReadyEvent)
        break_loop(engine)
    next_of(heard, ReadyEvent)
    assert engine.restarts == MOST_RESTARTS + 2


def test_a_model_that_can_not_load_is_not_tried_again(heard: "queue.SimpleQueue[Event]") -> None:
    engine = SupervisedEngine(partial(ThreadEngine, EngineConfig("no-such-model")), heard.put)
    with pytest.raises(ModelNotFoundError):
        engine.wait_ready(WAIT)
    next_of(heard, FailedEvent)
    assert (engine.state, engine.restarts) == ("failed", 0)
    assert engine.close(5)
    assert engine.state == "failed"


def test_a_model_that_has_gone_meanwhile_is_a_failure_for_good(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: ThreadEngine) -> None:
        raise EngineError("The folder has gone.")

    monkeypatch.setattr(ThreadEngine, "_load", gone)
    break_loop(engine)
    last = next_of(heard, FailedEvent)
    assert isinstance(last, FailedEvent)
    assert last.error == "The folder has gone."
    assert engine.state == "failed"


def test_close_ends_what_runs_and_nothing_is_started_after_it(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]"
) -> None:
    next_of(heard, ReadyEvent)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(PROMPT, GREEDY, ignore_eos=True), events.put)
    next_of(events, TokenEvent)
    assert engine.close(30)
    finish = next_of(events, FinishEvent)
    assert isinstance(finish, FinishEvent)
    assert finish.reason == "cancelled"
    assert engine.state == "closed"
    with pytest.raises(EngineClosedError):
        engine.submit(Request(PROMPT), events.put)
    assert (engine.restarts, engine.close(5)) == (0, True)


def test_close_on_the_way_to_the_next_engine_is_the_end(
    engine: SupervisedEngine, heard: "queue.SimpleQueue[Event]", monkeypatch: pytest.MonkeyPatch
) -> None:
    next_of(heard, ReadyEvent)
    closing, close = threading.Event(), ThreadEngine.close

    def late(self: ThreadEngine, timeout: float = 5.0) -> bool:
        if threading.current_thread().name == "engine-restart":
            assert closing.wait(WAIT)
        return close(self, timeout)

    monkeypatch.setattr(ThreadEngine, "close", late)
    break_loop(engine)
    next_of(heard, LoadEvent)
    (restarting,) = (thread for thread in threading.enumerate() if thread.name == "engine-restart")
    assert engine.close(30)
    closing.set()
    restarting.join(WAIT)
    assert not restarting.is_alive()
    assert (engine.state, engine.restarts) == ("closed", 0)
