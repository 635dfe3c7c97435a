"""The stream of events: whole, in order, for several readers, and never at the engine's cost."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import httpx
import pytest
from http_helpers import Connect, ask, until
from scripted_engine import ScriptedEngine, ScriptedRow, say_hello

from engine.events import (
    CacheEvent,
    Event,
    FailedEvent,
    FinishEvent,
    PrefillEvent,
    QueuedEvent,
    StepEvent,
    TokenEvent,
)
from engine.handle import EngineHandle
from engine.request import Request
from server.event_hub import BUFFER, MOST_WATCHERS
from server.event_json import Frame, decode
from server.facts import Hello, Lost
from server.keys import Keys
from server.run import ServerThread


class Reader:
    """Reads a stream of events on a thread of its own."""

    def __init__(self, client: httpx.Client, response: httpx.Response) -> None:
        self._frames: Queue[Frame | None] = Queue()
        self.comments = 0
        self.response = response
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self.response.iter_lines():
                self.comments += line.startswith(":")
                if line.startswith("data: "):
                    self._frames.put(decode(line.removeprefix("data: ")))
            self._frames.put(None)
        except (httpx.TransportError, httpx.StreamError):
            self._frames.put(None)

    def next(self) -> Frame | None:
        """The next frame; None at the end."""
        return self._frames.get(timeout=20)

    def until(self, kind: type[Frame]) -> list[Frame]:
        """The frames up to the first of a kind."""
        seen: list[Frame] = []
        while not (seen and isinstance(seen[-1], kind)):
            frame = self.next()
            assert frame is not None, seen
            seen.append(frame)
        return seen


@contextmanager
def reading(client: httpx.Client, **headers: str) -> Iterator[Reader]:
    with client.stream("GET", "/v1/mtplx/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield Reader(client, response)


def hello(reader: Reader) -> Hello:
    first = reader.next()
    assert isinstance(first, Hello)
    return first


def everything(row: ScriptedRow) -> None:
    row.prefill(3, miss="nothing cached yet")
    row.step(3, 1)
    row.say("ab", tokens=2)
    row.step(2, 2, source="copy")
    row.say("cde", kind="reasoning", tokens=3)
    row.finish()


def test_every_event_arrives_as_it_was_in_order(connect: Connect, scripted: ScriptedEngine) -> None:
    client, heard = connect(), list[Event]()
    scripted.script = everything
    with reading(client) as reader:
        hello(reader)
        unlisten = scripted.listen(heard.append)
        ask(client)
        got = reader.until(FinishEvent)
        until(lambda: any(isinstance(event, FinishEvent) for event in heard))
        unlisten()
        assert got == heard
        assert [type(event) for event in got] == [
            QueuedEvent, PrefillEvent, StepEvent, TokenEvent, StepEvent, TokenEvent, FinishEvent,
        ]  # fmt: skip
        scripted.keep(4)
        assert reader.next() == scripted.cache
        scripted.fail("it broke")
        failed = reader.next()
        assert isinstance(failed, FailedEvent)
        assert failed.error == "it broke"


def test_it_begins_with_all_that_a_reader_needs(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect()
    scripted.keep(2)
    ask(client)  # done, so not of interest
    scripted.script = lambda row: (row.prefill(3), row.say("a"), row.wait())
    scripted.submit(Request((5,) * 9, id="runs"), lambda event: None)
    until(lambda: client.get("/v1/mtplx/requests").json()["requests"][-1]["state"] == "decode")
    before = time.monotonic()
    with reading(client) as reader:
        first = hello(reader)
    assert before <= first.now <= time.monotonic()
    assert (first.state, first.model, first.cache) == ("ready", scripted.model, scripted.cache)
    assert first.server.address == str(client.base_url).rstrip("/")
    assert [(facts.id, facts.state, facts.completion_tokens) for facts in first.requests] == [("runs", "decode", 1)]


def test_a_reader_may_come_before_the_model_and_stay(connect: Connect, scripted: ScriptedEngine) -> None:
    scripted.load()
    with reading(connect()) as reader:
        first = hello(reader)
        assert (first.state, first.model) == ("loading", None)


def test_several_readers_each_get_everything(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect()
    scripted.script = everything
    with reading(client) as one, reading(client) as other:
        assert hello(one).server == hello(other).server
        ask(client)
        assert one.until(FinishEvent) == other.until(FinishEvent)


def test_a_silent_stream_shows_that_it_lives(connect: Connect) -> None:
    with reading(connect(keep_alive_s=0.02)) as reader:
        hello(reader)
        until(lambda: reader.comments >= 2)


def test_a_reader_that_leaves_is_forgotten_and_its_place_is_free(connect: Connect) -> None:
    client = connect()

    def watch_for_a_moment() -> bool:
        with client.stream("GET", "/v1/mtplx/events") as response:
            return response.status_code == 200 and "Hello" in next(response.iter_lines())

    for _ in range(3 * MOST_WATCHERS):
        until(watch_for_a_moment)


def test_more_readers_than_may_be_are_refused(connect: Connect) -> None:
    url = connect().base_url
    clients = [httpx.Client(base_url=url, trust_env=False, verify=False, timeout=20) for _ in range(MOST_WATCHERS + 1)]
    streams = [client.stream("GET", "/v1/mtplx/events") for client in clients]
    try:
        responses = [stream.__enter__() for stream in streams]
        assert [response.status_code for response in responses] == [200] * MOST_WATCHERS + [429]
        assert json.loads(responses[-1].read())["error"]["code"] == "rate_limit_exceeded"
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)


def test_a_reader_that_stalls_costs_the_engine_nothing_and_is_told_what_it_lost(
    connect: Connect, scripted: ScriptedEngine
) -> None:
    client, words, count = connect(), "word " * 400, 4 * BUFFER

    def script(row: ScriptedRow) -> None:
        for _ in range(count):
            row.say(words)
        row.finish()

    scripted.script = script
    with client.stream("GET", "/v1/mtplx/events") as response:  # which reads nothing that it is not asked for
        lines = response.iter_lines()
        assert isinstance(decode(next(lines).removeprefix("data: ")), Hello)
        scripted.submit(Request((5,) * 9, id="long"), lambda event: None)
        assert scripted.rows[0].finished.wait(60), "the engine goes on while nobody reads"
        scripted.script = say_hello
        with httpx.Client(base_url=client.base_url, trust_env=False, verify=False, timeout=20) as other:
            assert ask(other).status_code == 200, "and so does the server"
        tokens, lost, told = 0, 0, count + 2 + 4  # events of the long answer and of the short one
        while told:
            line = next(lines)
            if not line.startswith("data: "):
                continue
            frame = decode(line.removeprefix("data: "))
            told -= frame.count if isinstance(frame, Lost) else 1
            lost += frame.count if isinstance(frame, Lost) else 0
            if isinstance(frame, TokenEvent) and frame.request_id == "long":
                assert frame.spans[0].text == words, "what does arrive is whole"
                tokens += 1
    assert lost > 0
    assert 0 < tokens < count


def test_a_server_that_stops_ends_its_readers_at_once(scripted: ScriptedEngine) -> None:
    server = ServerThread(scripted, port=0)
    server.start()
    assert server.address is not None
    with (
        httpx.Client(base_url=server.address, trust_env=False, verify=False, timeout=20) as client,
        reading(client) as reader,
    ):
        hello(reader)
        assert server.stop(600.0), "waiting for those that only watch would outlast this test"
        assert reader.next() is None


def test_where_there_are_several_keys_each_sees_its_own_words_only(scripted: ScriptedEngine) -> None:
    keys = ["a" * 32, "b" * 32]
    scripted.script = everything
    server = ServerThread(scripted, port=0, keys=Keys(keys))
    server.start()
    assert server.address is not None
    clients: list[httpx.Client] = []
    for key in keys:
        own = {"authorization": f"Bearer {key}"}
        clients.append(httpx.Client(base_url=server.address, trust_env=False, verify=False, timeout=20, headers=own))
    mine, other = clients
    try:
        with reading(mine) as own_reader, reading(other) as foreign_reader:
            hello(own_reader)
            hello(foreign_reader)
            request_id = ask(mine, "a secret", stop="a secret stop").json()["id"]
            seen, shown = own_reader.until(FinishEvent), foreign_reader.until(FinishEvent)
        assert "cde" in repr(seen)
        assert [type(event) for event in seen] == [type(event) for event in shown], "figures are for everybody"
        assert [len(e.ids) for e in seen if isinstance(e, TokenEvent)] == [
            len(e.ids) for e in shown if isinstance(e, TokenEvent)
        ]
        assert "cde" not in repr(shown)
        assert {token for e in shown if isinstance(e, StepEvent) for token in e.tokens} == {""}
        told: Any = other.get(f"/v1/mtplx/requests/{request_id}").json()
        assert (told["prompt"]["tokens"], told["answer"]["tokens"], told["asked"]) == (None, None, None)
        assert told["usage"]["completion_tokens"] == 5
        assert other.post(f"/v1/mtplx/requests/{request_id}/cancel").status_code == 403
        assert mine.get(f"/v1/mtplx/requests/{request_id}").json()["prompt"]["total"] == told["prompt_tokens"]
        assert mine.post(f"/v1/mtplx/requests/{request_id}/cancel").status_code == 200
        assert keys[0] not in mine.get("/v1/mtplx/requests").text
    finally:
        for client in clients:
            client.close()
        assert server.stop(0.5)


def test_the_real_engines_events_arrive(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    heard: list[Event] = []
    with reading(demo) as reader:
        first = hello(reader)
        assert first.model == demo_engine.model
        assert isinstance(first.cache, CacheEvent)
        unlisten = demo_engine.listen(heard.append)
        answer = ask(demo, "What is 47 + 85?", seed=1).json()
        got = reader.until(FinishEvent)
        until(lambda: any(isinstance(event, FinishEvent) for event in heard))
        unlisten()
    assert got == heard[: len(got)]
    text = "".join(span.text for e in got if isinstance(e, TokenEvent) for span in e.spans if span.kind == "text")
    assert text == answer["choices"][0]["message"]["content"]
    assert sum(event.emitted for event in got if isinstance(event, StepEvent)) >= answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_other_methods_are_refused(connect: Connect, method: str) -> None:
    assert connect().request(method, "/v1/mtplx/events").status_code == 405
