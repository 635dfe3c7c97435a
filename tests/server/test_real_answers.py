"""The real engine behind a real socket: right answers, the same in every way of asking, and rows that are freed."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_helpers import ask, frames, until

from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent, TokenEvent
from engine.handle import EngineHandle

SUM = "What is 47 + 85?"
QUESTIONS = [SUM, "Tell me a short story about a fox.", "Count from 1 to 12.", "What is the capital of France?"]


def message(response: httpx.Response) -> tuple[str, str]:
    """(reasoning, content) of a whole or streamed answer."""
    if response.headers["content-type"] == "application/json":
        whole = response.json()["choices"][0]["message"]
        return whole.get("reasoning_content", ""), whole["content"]
    deltas = [choice["delta"] for chunk in frames(response)[:-1] for choice in chunk["choices"]]
    return (
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(delta.get("content", "") for delta in deltas),
    )


@pytest.fixture
def events(demo_engine: EngineHandle) -> Iterator[list[Event]]:
    """Everything the engine tells while the test runs, as the screens hear it."""
    heard: list[Event] = []
    unlisten = demo_engine.listen(heard.append)
    yield heard
    unlisten()


def of(events: list[Event], kind: type, **fields: object) -> list[Any]:
    return [
        event
        for event in list(events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]


def test_sum_is_right_with_its_reasoning_and_honest_usage(demo: httpx.Client) -> None:
    response = ask(demo, SUM, temperature=0)
    reasoning, content = message(response)
    assert "132" in content
    assert reasoning
    usage = response.json()["usage"]
    details = usage["completion_tokens_details"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < details["accepted_prediction_tokens"] <= usage["completion_tokens"]
    assert 0 < details["reasoning_tokens"] <= usage["completion_tokens"]
    assert details["rejected_prediction_tokens"] >= 0
    assert response.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("temperature", [0, 1])
def test_cap_inside_a_speculative_block_counts_exactly(demo: httpx.Client, max_tokens: int, temperature: float) -> None:
    body = ask(demo, QUESTIONS[1], temperature=temperature, seed=3, max_tokens=max_tokens).json()
    details = body["usage"]["completion_tokens_details"]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == max_tokens
    assert details["accepted_prediction_tokens"] <= max_tokens
    assert details["reasoning_tokens"] <= max_tokens


def test_seeded_text_is_the_same_alone_crowded_streamed_and_whole(demo: httpx.Client) -> None:
    def put(job: tuple[int, bool]) -> tuple[str, str]:
        number, stream = job
        question = QUESTIONS[number % len(QUESTIONS)]
        return message(ask(demo, question, seed=number, temperature=1, max_tokens=40, stream=stream))

    alone = [put((number, False)) for number in range(4)]
    jobs = [(number, stream) for number in range(4) for stream in (False, True)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        crowded = list(pool.map(put, jobs))
    assert crowded == [alone[number] for number, _ in jobs]


def test_choices_are_those_of_their_seeds(demo: httpx.Client) -> None:
    body = ask(demo, QUESTIONS[1], seed=10, temperature=1, max_tokens=30, n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for offset, choice in enumerate(body["choices"]):
        single = ask(demo, QUESTIONS[1], seed=10 + offset, temperature=1, max_tokens=30).json()
        assert choice["message"] == single["choices"][0]["message"]
    assert len({json.dumps(choice["message"]) for choice in body["choices"]}) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_cut_exactly_before(demo: httpx.Client, stream: bool) -> None:
    fields: dict[str, Any] = {"temperature": 0, "reasoning_effort": "none", "max_tokens": 60}
    _, text = message(ask(demo, QUESTIONS[1], **fields))
    for start in (5, 12, 31):
        stop = text[start : start + 7]
        _, cut = message(ask(demo, QUESTIONS[1], **fields, stop=["never said", stop], stream=stream))
        assert cut == text[: text.index(stop)]


def test_logprobs_are_the_models_own_for_every_token(demo: httpx.Client) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "logprobs": True, "top_logprobs": 3}
    whole = ask(demo, SUM, **fields)
    tokens = whole.json()["choices"][0]["logprobs"]["content"]
    assert len(tokens) == whole.json()["usage"]["completion_tokens"]
    for token in tokens:
        ranked = [top["logprob"] for top in token["top_logprobs"]]
        assert ranked == sorted(ranked, reverse=True)
        assert token["logprob"] == pytest.approx(ranked[0], abs=1e-4), "greedy takes the likeliest"
        assert token["logprob"] <= 1e-6
    streamed = [
        token
        for chunk in frames(ask(demo, SUM, **fields, stream=True))[:-1]
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [token["bytes"] for token in streamed] == [token["bytes"] for token in tokens]


def test_screens_hear_of_an_outside_request_and_who_asks(demo: httpx.Client, events: list[Event]) -> None:
    request_id = ask(demo, "hi", max_tokens=3).json()["id"]
    until(lambda: of(events, FinishEvent, request_id=request_id))
    (queued,) = of(events, QueuedEvent, request_id=request_id)
    assert queued.source == "api:python-httpx"


def _leave(client: httpx.Client, body: dict[str, Any], when: Callable[[], object]) -> None:
    """Send a request and close its connection once `when` is true."""
    with httpx.Client(base_url=client.base_url, trust_env=False, timeout=30) as own:
        sender = threading.Thread(target=_post, args=(own, body))
        sender.start()
        until(when, 30)
        # Closing the pool's sockets from here is what a client that is killed does.
        for connection in own._transport._pool.connections:  # type: ignore[attr-defined]
            stream = connection._connection._network_stream
            stream.get_extra_info("socket").shutdown(2)
        sender.join(30)


def _post(client: httpx.Client, body: dict[str, Any]) -> None:
    try:
        client.post("/v1/chat/completions", json=body)
    except httpx.TransportError:
        return


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_client_that_leaves_frees_its_row(demo: httpx.Client, events: list[Event], stream: bool, phase: str) -> None:
    content = "one two three four five six seven eight " * 90 if phase == "prefill" else "Count from 1 to 12."
    body = {
        "messages": [{"role": "user", "content": content}], "stream": stream, "ignore_eos": True, "temperature": 1,
    }  # fmt: skip
    seen: type = PrefillEvent if phase == "prefill" else TokenEvent
    _leave(demo, body, lambda: of(events, seen))
    until(lambda: of(events, FinishEvent))
    (finish,) = of(events, FinishEvent)
    assert finish.reason == "cancelled"
    assert ask(demo, "hi", max_tokens=2).status_code == 200


def test_client_that_leaves_the_queue_is_never_read(demo: httpx.Client, events: list[Event]) -> None:
    long: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True, "max_tokens": 100}
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(_post, demo, {**long, "seed": i}) for i in range(8)]
        until(lambda: len({event.request_id for event in of(events, TokenEvent)}) == 8, 30)
        _leave(demo, {**long, "max_tokens": 99}, lambda: of(events, QueuedEvent, max_tokens=99))
        (queued,) = of(events, QueuedEvent, max_tokens=99)
        until(lambda: of(events, FinishEvent, request_id=queued.request_id), 30)
        (finish,) = of(events, FinishEvent, request_id=queued.request_id)
        for future in running:
            future.result(60)
    assert (finish.reason, finish.usage.completion_tokens) == ("cancelled", 0)
    assert not of(events, TokenEvent, request_id=queued.request_id)
