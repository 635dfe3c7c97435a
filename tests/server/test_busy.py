"""Many clients at once on the real engine: each gets its own answer, and those that there is no room for are told."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_helpers import ask, until

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import OutOfMemoryError, QueueFullError
from engine.events import Event, FinishEvent, QueuedEvent
from engine.handle import EngineHandle
from server.errors import from_engine
from server.run import ServerThread

CLIENTS = 32


def test_32_clients_at_once_each_get_the_text_of_their_seed(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 6, "reasoning_effort": "none"}
    alone = {seed: ask(demo, f"Count to {seed}.", seed=seed, **fields).json()["choices"][0] for seed in range(4)}
    ended: list[FinishEvent] = []
    unlisten = demo_engine.listen(lambda event: ended.append(event) if isinstance(event, FinishEvent) else None)

    def client(number: int) -> tuple[int, Any]:
        with httpx.Client(base_url=demo.base_url, timeout=120, trust_env=False) as own:
            response = ask(own, f"Count to {number % 4}.", seed=number % 4, **fields)
            assert response.status_code == 200, response.text
            return number % 4, response.json()["choices"][0]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, range(CLIENTS)))
    until(lambda: len(ended) >= CLIENTS)  # a client may read its answer before the listeners hear of its end
    unlisten()
    assert answers == [(seed, alone[seed]) for seed, _ in answers]
    assert len(ended) == CLIENTS


@pytest.fixture
def small() -> Iterator[tuple[ThreadEngine, str]]:
    """A server with room for two requests: one runs, one waits."""
    engine = ThreadEngine(EngineConfig(max_rows=1, max_waiting=1))
    engine.wait_ready(120)
    server = ServerThread(engine, port=0)
    server.start()
    assert server.address is not None
    yield engine, server.address
    assert server.stop(0.5)
    assert engine.close(30)


def test_a_busy_server_answers_429_and_takes_requests_again_when_it_can(small: tuple[ThreadEngine, str]) -> None:
    engine, url = small
    queued: list[str] = []
    ended: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, QueuedEvent):
            queued.append(event.request_id)
        elif isinstance(event, FinishEvent):
            ended.append(event.request_id)

    engine.listen(hear)

    def client(number: int) -> httpx.Response:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as own:
            return ask(own, "Tell me a story.", seed=number, temperature=1, max_tokens=1500, ignore_eos=True)

    with ThreadPoolExecutor(12) as pool, httpx.Client(base_url=url, timeout=60, trust_env=False) as own:
        running = [pool.submit(client, number) for number in range(12)]
        until(lambda: sum(future.done() for future in running) == 10, 60)
        for response in [future.result() for future in running if future.done()]:
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert "2 requests are here" in error["message"]
        assert ask(own, "hi", stream=True).status_code == 429, "a stream is refused before it begins"
        assert ask(own, "hi", n=2).status_code == 429
        until(lambda: len(queued) == 2, 60)
        for request_id in queued:
            engine.cancel(request_id)
        until(lambda: len(ended) == 2, 60)
        assert ask(own, "hi", max_tokens=2).status_code == 200


def test_what_can_never_fit_is_not_to_be_tried_again() -> None:
    error = from_engine(OutOfMemoryError("A prompt of 5000 tokens needs 9 GiB."))
    assert (error.status, error.code, error.headers["x-should-retry"]) == (503, "insufficient_memory", "false")
    assert "retry-after" not in error.headers
    assert error.body["error"]["message"] == "A prompt of 5000 tokens needs 9 GiB."
    assert from_engine(QueueFullError(8, 128)).status == 429
