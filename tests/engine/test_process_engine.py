"""An engine behaves the same on a thread and in a process of its own; and what only a process can suffer."""

import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.collect import complete, complete_all
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import (
    BadRequestError,
    ContextOverflowError,
    EngineClosedError,
    EngineError,
    ModelNotFoundError,
    QueueFullError,
)
from engine.events import (
    CacheEvent,
    Event,
    FailedEvent,
    FinishEvent,
    LoadEvent,
    PrefillEvent,
    QueuedEvent,
    ReadyEvent,
    StepEvent,
    TokenEvent,
)
from engine.handle import EngineHandle
from engine.process import ProcessEngine
from engine.prompts import PROMPTS
from engine.request import Request, Sampling

GREEDY = Sampling(temperature=0.0)
WAIT = 60.0
Start = Callable[..., EngineHandle]


@pytest.fixture(scope="module")
def in_process() -> Iterator[ProcessEngine]:
    engine = ProcessEngine(EngineConfig())
    engine.wait_ready(WAIT)
    yield engine
    assert engine.close()


@pytest.fixture(params=["thread", "process"])
def either(request: pytest.FixtureRequest, engine: ThreadEngine, in_process: ProcessEngine) -> EngineHandle:
    """The bundled model, loaded, on a thread and in a process."""
    return engine if request.param == "thread" else in_process


@pytest.fixture(params=[ThreadEngine, ProcessEngine])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts an engine of either kind; what a test leaves open is closed."""
    started: list[EngineHandle] = []

    def start(config: EngineConfig, *listeners: Callable[[Event], None]) -> EngineHandle:
        started.append(request.param(config, *listeners))
        return started[-1]

    yield start
    for engine in started:
        assert engine.close(30)


@pytest.fixture
def doomed() -> Iterator[ProcessEngine]:
    """A loaded engine whose process may be hurt."""
    engine = ProcessEngine(EngineConfig())
    engine.wait_ready(WAIT)
    yield engine
    assert engine.close()


def asked(engine: EngineHandle, prompt: str = PROMPTS[0], **changes: Any) -> Request:
    return Request(engine.chat.render([{"role": "user", "content": prompt}]), **{"sampling": GREEDY, **changes})


def endless(engine: EngineHandle, first: type[Event] = TokenEvent) -> "queue.SimpleQueue[Event]":
    """The events of an answer that goes on, from the first one of that kind on."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(asked(engine, ignore_eos=True), events.put)
    while not isinstance(events.get(timeout=WAIT), first):
        pass
    return events


def last_of(events: "queue.SimpleQueue[Event]") -> FinishEvent:
    """The end of a request; nothing may follow it."""
    while not isinstance(event := events.get(timeout=WAIT), FinishEvent):
        pass
    assert events.empty()
    return event


def test_both_say_the_same(engine: ThreadEngine, in_process: ProcessEngine) -> None:
    assert in_process.model == engine.model
    requests = [
        asked(engine, max_tokens=24, stop=("132",), logprobs=2),
        asked(engine, PROMPTS[1], max_tokens=24, sampling=Sampling(temperature=1.0, top_k=30), seed=5),
        asked(engine, PROMPTS[2], max_tokens=24, depth=2),
    ]
    here = complete_all(engine, requests)
    there = complete_all(in_process, [replace(request, id=f"there{i}") for i, request in enumerate(requests)])
    for one, other in zip(here, there, strict=True):
        assert one.error is None
        assert (one.ids, one.text, one.reasoning, one.finish_reason) == (
            other.ids, other.text, other.reasoning, other.finish_reason,
        )  # fmt: skip
        assert one.usage.completion_tokens == other.usage.completion_tokens
        assert [token.id for token in one.logprobs] == [token.id for token in other.logprobs]


def test_events_come_in_order_and_by_this_processs_clock(either: EngineHandle) -> None:
    heard: list[Event] = []
    unlisten = either.listen(heard.append)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    before = time.monotonic()
    either.submit(asked(either, max_tokens=12, id="ordered"), events.put)
    seen = [events.get(timeout=WAIT)]
    while not isinstance(seen[-1], FinishEvent):
        seen.append(events.get(timeout=WAIT))
    complete(either, asked(either, max_tokens=2))  # the listener is called after the sink
    unlisten()
    kinds = [type(event) for event in seen]
    assert kinds[:2] == [QueuedEvent, PrefillEvent]
    assert kinds.count(FinishEvent) == 1
    assert all(after is TokenEvent for kind, after in pairwise(kinds) if kind is StepEvent)
    times = [before, *(event.at for event in seen), time.monotonic()]
    assert times == sorted(times)
    assert [event for event in heard if getattr(event, "request_id", "") == "ordered"] == seen


@pytest.mark.parametrize("phase", [QueuedEvent, PrefillEvent, StepEvent, TokenEvent])
def test_cancel_in_every_phase_ends_a_request_once_with_what_it_said(either: EngineHandle, phase: type[Event]) -> None:
    request = asked(either, PROMPTS[1] * 40, ignore_eos=True)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def take(event: Event) -> None:
        if isinstance(event, phase):
            either.cancel(request.id)
        events.put(event)

    either.submit(request, take)
    seen: list[Event] = []
    while not (seen and isinstance(seen[-1], FinishEvent)):
        seen.append(events.get(timeout=WAIT))
    assert seen[-1].reason == "cancelled"
    assert seen[-1].usage.completion_tokens == sum(len(e.ids) for e in seen if isinstance(e, TokenEvent))
    assert complete(either, asked(either, max_tokens=3)).error is None
    assert events.empty()
    either.cancel("nobody")


def test_a_sink_that_raises_hurts_nobody(either: EngineHandle) -> None:
    def bad(event: Event) -> None:
        raise ZeroDivisionError

    unlisten = either.listen(bad)
    either.submit(asked(either, max_tokens=8), bad)
    assert complete(either, asked(either, max_tokens=8)).error is None
    unlisten()


def test_a_sink_may_submit(either: EngineHandle) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def chain(event: Event) -> None:
        if isinstance(event, FinishEvent):
            either.submit(asked(either, max_tokens=2), events.put)

    either.submit(asked(either, max_tokens=2), chain)
    assert last_of(events).reason == "length"


def test_two_requests_of_one_id_go_to_their_own_sinks(either: EngineHandle) -> None:
    one: queue.SimpleQueue[Event] = queue.SimpleQueue()
    two: queue.SimpleQueue[Event] = queue.SimpleQueue()
    either.submit(asked(either, max_tokens=3, id="twin"), one.put)
    either.submit(asked(either, max_tokens=7, id="twin"), two.put)
    assert last_of(one).usage.completion_tokens == 3
    assert last_of(two).usage.completion_tokens == 7


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (99_999_999,)}),
        ("max_tokens", {"max_tokens": 0}),
        ("depth", {"depth": 99}),
        ("temperature", {"sampling": Sampling(temperature=float("nan"))}),
        ("stop", {"stop": ("",)}),
    ],
)
def test_what_can_not_run_is_refused_at_once(either: EngineHandle, param: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refused:
        either.submit(replace(Request((1, 2, 3), GREEDY), **changes), lambda event: None)
    assert refused.value.param == param
    context = either.model.context
    with pytest.raises(ContextOverflowError, match=rf"{context + 3}.*{context}"):
        either.submit(Request((5,) * (context + 3), GREEDY), lambda event: None)


def test_drafts_asked_of_a_model_without_a_head_and_a_full_queue_are_refused_at_once(start: Start) -> None:
    engine = start(EngineConfig(mode="ar", max_rows=1, max_waiting=0))
    engine.wait_ready(WAIT)
    with pytest.raises(BadRequestError, match="mode ar"):
        engine.submit(asked(engine, depth=1), lambda event: None)
    events = endless(engine)
    told: list[Event] = []
    with pytest.raises(QueueFullError):
        engine.submit(asked(engine), told.append)
    assert engine.close(30)
    assert last_of(events).reason == "cancelled"
    assert told == [], "what was refused has no events"


def test_a_whole_life_from_the_first_stage_of_loading_to_close(start: Start) -> None:
    heard: list[Event] = []
    engine = start(EngineConfig(), heard.append)
    engine.wait_ready(WAIT)
    events = endless(engine)
    assert engine.close(30)
    assert engine.state == "closed"
    last = last_of(events)
    assert (last.reason, last.error) == ("cancelled", None)
    assert last.usage.completion_tokens > 0
    with pytest.raises(EngineClosedError):
        engine.submit(Request((5,), GREEDY), events.put)
    engine.cancel(last.request_id)
    assert engine.close(5), "closing twice is harmless"
    kinds = list(dict.fromkeys(map(type, heard)))
    assert kinds == [LoadEvent, ReadyEvent, CacheEvent, QueuedEvent, PrefillEvent, StepEvent, TokenEvent, FinishEvent]


def test_a_model_that_can_not_load_says_so_everywhere(start: Start) -> None:
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine = start(EngineConfig(model="no-such-model"), heard.put)
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        engine.wait_ready(WAIT)
    assert engine.state == "failed"
    with pytest.raises(ModelNotFoundError):
        engine.submit(Request((5,), GREEDY), lambda event: None)
    told = heard.get(timeout=WAIT)
    assert isinstance(told, FailedEvent)
    assert "no-such-model" in told.error
    assert engine.close(5)
    assert engine.state == "failed"


def test_close_while_loading_leaves_no_waiter(start: Start) -> None:
    engine = start(EngineConfig())
    assert engine.close(30)
    assert engine.state in ("closed", "ready")
    if isinstance(engine, ProcessEngine):
        with pytest.raises(EngineClosedError):
            engine.wait_ready(WAIT)


def test_what_the_process_logs_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("where the folder should be")
    engine = ProcessEngine(EngineConfig(cache_folder=file))
    engine.wait_ready(WAIT)
    assert engine.close(30)
    logged = [record for record in caplog.records if record.name == "engine.caches.disk"]
    assert str(file) in logged[0].getMessage()
    assert logged[0].process == engine.pid


def test_the_heartbeat_travels(in_process: ProcessEngine) -> None:
    complete(in_process, asked(in_process, max_tokens=4))
    assert 0 <= in_process.heartbeat_age() < 30


def test_a_process_that_is_killed_ends_its_requests_with_the_signals_name(doomed: ProcessEngine) -> None:
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    tokens: list[int] = []
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    started: queue.SimpleQueue[None] = queue.SimpleQueue()

    def take(event: Event) -> None:
        if isinstance(event, TokenEvent):
            tokens.extend(event.ids)
            started.put(None)
        events.put(event)

    doomed.submit(asked(doomed, ignore_eos=True), take)
    started.get(timeout=WAIT)
    doomed.listen(heard.put)
    os.kill(doomed.pid, signal.SIGKILL)
    last = last_of(events)
    assert last.reason == "error"
    assert "SIGKILL" in (last.error or "")
    assert last.usage.completion_tokens == len(tokens) > 0
    while not isinstance(told := heard.get(timeout=WAIT), FailedEvent):
        pass
    assert "SIGKILL" in told.error
    assert doomed.state == "failed"
    with pytest.raises(EngineError, match="SIGKILL"):
        doomed.submit(Request((5,), GREEDY), events.put)
    with pytest.raises(EngineError, match="SIGKILL"):
        doomed.wait_ready(WAIT)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was killed (SIGKILL), by hand or because memory ran out"),
        (signal.SIGSEGV, "crashed in native code (SIGSEGV)"),
        (signal.SIGTERM, "was ended by SIGTERM"),
    ],
)
def test_a_process_that_dies_while_loading_leaves_no_waiter(number: signal.Signals, words: str) -> None:
    engine = ProcessEngine(EngineConfig())
    os.kill(engine.pid, number)
    with pytest.raises(EngineError, match=re.escape(words)):
        engine.wait_ready(WAIT)
    assert engine.state == "failed"
    assert engine.close()


def test_a_process_that_does_not_answer_is_killed_by_close(doomed: ProcessEngine) -> None:
    events = endless(doomed)
    os.kill(doomed.pid, signal.SIGSTOP)
    assert doomed.close(3.0)
    assert last_of(events).reason == "cancelled"
    assert doomed.state == "closed"


def test_ctrl_c_is_left_to_the_parent_from_the_first_moment_on() -> None:
    engine = ProcessEngine(EngineConfig())
    os.kill(engine.pid, signal.SIGINT)
    engine.wait_ready(WAIT)
    events = endless(engine)
    os.kill(engine.pid, signal.SIGINT)
    assert complete(engine, asked(engine, max_tokens=20)).error is None
    assert engine.close(30)
    assert last_of(events).reason == "cancelled"


PARENT = """
import os, signal, sys, threading
from engine.config import EngineConfig
from engine.events import TokenEvent
from engine.process import ProcessEngine
from engine.request import Request
engine = ProcessEngine(EngineConfig())
engine.wait_ready()
prompt = engine.chat.render([{"role": "user", "content": "Hi"}])
print("mlx" in sys.modules, "mlx.core" in sys.modules, flush=True)
decoding = threading.Event()
def take(event):
    if isinstance(event, TokenEvent):
        decoding.set()
engine.submit(Request(prompt, ignore_eos=True), take)
decoding.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_with_its_parent_which_never_loads_mlx() -> None:
    # the child holds the other end of standard error, so this returns only when both are gone
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (done.stdout, done.stderr) == ("False False\n", "")


def subclasses(kind: type[EngineError]) -> Iterator[type[EngineError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from subclasses(below)


@pytest.mark.parametrize("kind", sorted(subclasses(EngineError), key=str), ids=lambda kind: kind.__name__)
def test_every_error_comes_out_of_a_pickle_as_it_went_in(kind: type[EngineError]) -> None:
    error = kind.__new__(kind, "what was wrong")
    vars(error).update(param="stop", context=7)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == ("what was wrong", {"param": "stop", "context": 7})


def test_an_error_with_fields_keeps_them() -> None:
    again = pickle.loads(pickle.dumps(ContextOverflowError(9000, 2048)))
    assert isinstance(again, ContextOverflowError)
    assert (again.param, again.prompt_tokens, again.context) == ("messages", 9000, 2048)
    assert str(again) == str(ContextOverflowError(9000, 2048))
