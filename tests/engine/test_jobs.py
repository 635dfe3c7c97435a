"""Work that others bring to the engine's thread: in turn with what it does anyway, and with an end in every case."""

import threading
from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import pytest

from engine.collect import complete
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import EngineClosedError, OutOfMemoryError
from engine.events import Event, FinishEvent, StepEvent
from engine.request import Request, Sampling
from engine.retrieval.jobs import perform_all

MIB = 2**20
SIZE = 125 * MIB
"""Of the 130 MiB that the model leaves of 200: a request of 200 tokens still fits beside it, one of 1500 does not."""


def story(engine: ThreadEngine, tokens: int) -> Request:
    prompt = engine.chat.render([{"role": "user", "content": "Tell me a story about a fox."}])
    return Request(prompt, Sampling(temperature=1.0), max_tokens=tokens, seed=5, ignore_eos=True)


def test_a_job_runs_on_the_engines_thread_and_gives_back_what_it_returns(engine: ThreadEngine) -> None:
    name = engine.perform(lambda: threading.current_thread().name).result(10)
    assert name == "engine"


def test_a_job_that_raises_gives_its_error_to_who_sent_it_and_to_nobody_else(engine: ThreadEngine) -> None:
    def fail() -> None:
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        engine.perform(fail).result(10)
    assert engine.state == "ready"
    assert complete(engine, story(engine, 3)).ids


def test_a_chat_steps_on_between_any_two_jobs_and_says_what_it_says_alone(engine: ThreadEngine) -> None:
    request = story(engine, 200)
    alone = complete(engine, request)
    steps: list[StepEvent] = []
    begun, over = threading.Event(), threading.Event()
    text = ""

    def hear(event: Event) -> None:
        nonlocal text
        if isinstance(event, StepEvent):
            steps.append(event)
            begun.set()
        elif isinstance(event, FinishEvent):
            over.set()
        text += "".join(span.text for span in getattr(event, "spans", ()))

    engine.submit(replace(request, id="beside"), hear)
    assert begun.wait(20)
    counts = [future.result(20) for future in [engine.perform(lambda: len(steps)) for _ in range(6)]]
    assert over.wait(20)
    assert len(set(counts)) == 6, "two jobs ran with no step between them"
    assert text == alone.reasoning + alone.text


def test_a_job_whose_future_was_cancelled_is_not_begun(engine: ThreadEngine) -> None:
    gate, ran = threading.Event(), []
    first = engine.perform(gate.wait)
    second = engine.perform(lambda: ran.append(1))
    assert second.cancel()
    gate.set()
    first.result(10)
    engine.perform(lambda: None).result(10)
    assert not ran


def test_jobs_that_are_left_when_the_engine_stops_fail_in_words() -> None:
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    begun, gate = threading.Event(), threading.Event()
    running = engine.perform(lambda: (begun.set(), gate.wait()))
    left = [engine.perform(lambda: None) for _ in range(3)]
    assert begun.wait(10)
    assert not engine.close(0)
    gate.set()
    assert engine.close(20)
    assert running.result(10)
    for future in left:
        with pytest.raises(EngineClosedError, match="stopped during this request"):
            future.result(10)
    with pytest.raises(EngineClosedError):
        engine.perform(lambda: None)


def numbers(most: int, done: list[int]) -> Generator[float, None, str]:
    try:
        for number in range(most):
            done.append(number)
            yield 1.0
    finally:
        done.append(-1)
    return "whole"


def test_work_in_steps_takes_a_job_for_each_and_tells_what_each_did(engine: ThreadEngine) -> None:
    told: list[float] = []
    assert perform_all(engine, numbers(4, []), lambda tokens, seconds: told.append(tokens)).result(10) == "whole"
    assert told == [1.0] * 4


def test_work_in_steps_that_is_cancelled_ends_before_its_next_step(engine: ThreadEngine) -> None:
    done: list[int] = []
    held: list[Future[str]] = []

    def observe(tokens: float, seconds: float) -> None:
        if len(done) == 2:
            held[0].cancel()

    gate = threading.Event()
    engine.perform(gate.wait)
    held.append(perform_all(engine, numbers(50, done), observe))
    gate.set()
    engine.perform(lambda: None).result(10)
    with pytest.raises(CancelledError):
        held[0].result(10)
    for _ in range(3):
        engine.perform(lambda: None).result(10)
    assert done == [0, 1, -1]


def test_steps_that_fail_end_the_whole(engine: ThreadEngine) -> None:
    def steps() -> Generator[float, None, None]:
        yield 1.0
        raise LookupError("on purpose")

    with pytest.raises(LookupError):
        perform_all(engine, steps(), lambda tokens, seconds: None).result(10)


def test_memory_that_a_job_sets_aside_is_not_for_requests_until_it_is_given_back() -> None:
    engine = ThreadEngine(EngineConfig(memory_bytes=200 * MIB))
    engine.wait_ready(120)
    long = replace(story(engine, 1500), id="long")
    engine.submit(long, lambda event: None)
    engine.cancel(long.id)
    engine.perform(lambda: engine.set_aside(SIZE)).result(10)
    with pytest.raises(OutOfMemoryError, match="are free beside the model"):
        engine.submit(long, lambda event: None)
    with pytest.raises(OutOfMemoryError, match=r"needs 125 MiB, and \d+ MiB are free beside the chat model"):
        engine.perform(lambda: engine.set_aside(SIZE)).result(10)
    engine.perform(lambda: engine.set_aside(-SIZE)).result(10)
    assert complete(engine, replace(long, id="again", max_tokens=3)).ids
    assert engine.close()


def test_memory_is_not_set_aside_from_under_a_request_that_waits_for_it() -> None:
    engine = ThreadEngine(EngineConfig(memory_bytes=200 * MIB, max_rows=1))
    engine.wait_ready(120)
    finished = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, FinishEvent):
            finished.set()

    engine.submit(replace(story(engine, 200), id="runs"), lambda event: None)
    engine.submit(replace(story(engine, 1500), id="waits"), hear)
    with pytest.raises(OutOfMemoryError):
        engine.perform(lambda: engine.set_aside(SIZE)).result(20)
    engine.cancel("waits")
    assert finished.wait(20)
    engine.cancel("runs")
    assert engine.close()
