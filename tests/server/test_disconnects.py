"""A client that leaves is noticed at once, in every phase and by every API, and leaves nothing behind."""

import json
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from apis import APIS, body
from http_helpers import Connect, ask, until
from raw_http import ASK, dial
from scripted_engine import ScriptedEngine, ScriptedRow

import engine as engine_package
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent
from engine.handle import EngineHandle
from server.run import READERS, ServerThread

WAIT = 30.0
TO_ALL = pytest.mark.parametrize("path", APIS)
BOTH = pytest.mark.parametrize("stream", [False, True])


def sent(client: httpx.Client, path: str, fields: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent; its answer is not read."""
    sock = dial(client)
    sock.sendall(request(path, fields))
    return sock


def request(path: str, fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = ASK.replace(b"/v1/chat/completions", path.encode()) + b"Connection: close\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(content) + content


def answered(client: httpx.Client, path: str, code: int) -> int:
    """How many answers of this status the server has counted; it counts one when nothing of it is left to do."""
    line = f'mtplx_http_requests_total{{handler="{path}",method="POST",status="{code}"}} '
    found = [text for text in client.get("/metrics").text.splitlines() if text.startswith(line)]
    return int(float(found[0].removeprefix(line))) if found else 0


@TO_ALL
@BOTH
def test_a_client_that_leaves_while_the_model_speaks_frees_its_rows(
    connect: Connect, scripted: ScriptedEngine, path: str, stream: bool
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("begun")
        row.wait()

    scripted.script = script
    client = connect()
    sock = sent(client, path, body(path, stream=stream))
    until(lambda: scripted.rows)
    if stream:
        assert b"200 OK" in sock.recv(65536)
    sock.close()
    until(lambda: scripted.rows[0].finished.is_set())
    assert scripted.rows[0].cancelled.is_set()
    until(lambda: answered(client, path, 200 if stream else 499) == 1)


@TO_ALL
@BOTH
def test_a_client_that_leaves_before_the_first_token_frees_its_rows(
    connect: Connect, scripted: ScriptedEngine, path: str, stream: bool
) -> None:
    scripted.script = ScriptedRow.wait
    client = connect()
    sock = sent(client, path, body(path, stream=stream))
    until(lambda: scripted.rows)
    sock.close()
    until(lambda: scripted.rows[0].finished.is_set())
    assert scripted.rows[0].cancelled.is_set()


class SlowFormat:
    """A chat format that renders when it is told to."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    def render(self, *args: Any, **kwargs: Any) -> tuple[int, ...]:
        self.entered.release()
        assert self.gate.wait(WAIT)
        return self._chat.render(*args, **kwargs)


@contextmanager
def serving(engine: EngineHandle) -> Iterator[httpx.Client]:
    server = ServerThread(engine, port=0)
    server.start()
    with httpx.Client(base_url=server.address or "", timeout=WAIT, trust_env=False, verify=False) as client:
        yield client
    assert server.stop(1.0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_client_that_leaves_while_its_prompt_is_rendered_is_never_submitted(
    chat_format: ChatFormat, path: str
) -> None:
    slow = SlowFormat(chat_format)
    scripted = ScriptedEngine(slow)  # type: ignore[arg-type]  # it is used as one
    with serving(scripted) as client:
        sock = sent(client, path, body(path, "left"))
        assert slow.entered.acquire(timeout=WAIT)
        sock.close()
        until(lambda: answered(client, path, 499) == 1)
        slow.gate.set()
        assert ask(client).status_code == 200
        assert [row.request.prompt for row in scripted.rows] == [
            chat_format.render([{"role": "user", "content": "hi"}], thinking=True, tools=None)
        ]


def test_prompts_that_wait_for_a_thread_are_not_rendered_for_clients_that_have_left(chat_format: ChatFormat) -> None:
    slow = SlowFormat(chat_format)
    scripted = ScriptedEngine(slow)  # type: ignore[arg-type]  # it is used as one
    with serving(scripted) as client:
        path = "/v1/chat/completions"
        socks = [sent(client, path, body(path)) for _ in range(60)]
        for _ in range(READERS):
            assert slow.entered.acquire(timeout=WAIT)
        for sock in socks:
            sock.close()
        until(lambda: answered(client, path, 499) == 60)
        slow.gate.set()
        assert ask(client).status_code == 200
        assert slow.entered.acquire(timeout=WAIT)
        assert not slow.entered.acquire(blocking=False)


def test_a_client_that_leaves_within_its_body_leaves_nothing(client: httpx.Client, scripted: ScriptedEngine) -> None:
    for _ in range(20):
        with dial(client) as sock:
            sock.sendall(ASK + b"Content-Length: 999\r\n\r\n{")
    assert ask(client).status_code == 200
    assert len(scripted.rows) == 1


def test_all_choices_of_a_client_that_leaves_are_freed(connect: Connect, scripted: ScriptedEngine) -> None:
    scripted.script = ScriptedRow.wait
    path = "/v1/chat/completions"
    with sent(connect(), path, body(path, n=4)):
        until(lambda: len(scripted.rows) == 4)
    until(lambda: all(row.finished.is_set() for row in scripted.rows))


@pytest.fixture(scope="module")
def long_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadEngine]:
    """The bundled model with room for long prompts."""
    source = Path(engine_package.__file__).parent / "assets" / "demo-13m"
    folder = tmp_path_factory.mktemp("long") / "demo-13m"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)
    settings = json.loads((source / "config.json").read_text())
    (settings.get("text_config") or settings)["max_position_embeddings"] = 1 << 14
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(settings))
    long = ThreadEngine(EngineConfig(str(folder)))
    assert long.wait_ready(120).context == 1 << 14
    yield long
    assert long.close(30)


@BOTH
def test_a_client_that_leaves_a_prefill_of_10k_tokens_frees_the_engine_before_its_next_chunk(
    long_engine: ThreadEngine, stream: bool
) -> None:
    path = "/v1/chat/completions"
    heard: list[Event] = []
    reading, gone = threading.Event(), threading.Event()

    def hear(event: Event) -> None:
        heard.append(event)
        if isinstance(event, PrefillEvent) and not reading.is_set():
            reading.set()
            gone.wait(WAIT)  # the engine stands still here, so that no chunk is read on the way of the news

    unlisten = long_engine.listen(hear)
    draw = random.Random(stream)
    text = " ".join(draw.choice(["one", "two", "fox", "river", "seven"]) for _ in range(10_000))
    with serving(long_engine) as client:
        sock = sent(client, path, body(path, text, stream=stream))
        assert reading.wait(WAIT)
        sock.close()
        until(lambda: answered(client, path, 200 if stream else 499) == 1)
        gone.set()
        until(lambda: any(isinstance(event, FinishEvent) for event in heard))
        assert ask(client, "hi", max_tokens=2).status_code == 200
    unlisten()
    queued = next(event for event in heard if isinstance(event, QueuedEvent))
    finish = next(event for event in heard if isinstance(event, FinishEvent))
    chunks = [event for event in heard if isinstance(event, PrefillEvent) and event.request_id == queued.request_id]
    assert queued.prompt_tokens > 10_000
    assert (finish.request_id, finish.reason) == (queued.request_id, "cancelled")
    assert len(chunks) == 1
    assert chunks[0].done < chunks[0].total


def threads() -> set[threading.Thread]:
    """Those that run, but for the pool in which prompts are rendered: it keeps its threads."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("mtplx-reader", "ThreadPool"))}


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def leave(client: httpx.Client, draw: random.Random) -> None:
    """Ask something, and leave at some moment: in the headers, in the body, or after so many bytes of the answer."""
    path = draw.choice(list(APIS))
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    text = " ".join(draw.choice(["one", "two", "fox", "river", "seven"]) for _ in range(draw.choice([2, 20, 200])))
    content = request(path, body(path, text, stream=draw.random() < 0.7, **{most: draw.choice([1, 20, 60])}))
    cut = draw.choice([draw.randrange(len(content)), len(content), len(content), len(content)])
    with dial(client, WAIT) as sock, suppress(ConnectionResetError, BrokenPipeError):
        if draw.random() < 0.5:  # gone with a reset, as from a process that was killed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(content[:cut])
        if cut == len(content):
            for _ in range(draw.choice([0, 0, 1, 2, 4])):
                sock.recv(draw.choice([1, 200, 4000]))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_disconnects_leave_no_row_no_thread_and_no_descriptor(demo_engine: EngineHandle, count: int) -> None:
    queued: set[str] = set()
    ended: set[str] = set()

    def hear(event: Event) -> None:
        if isinstance(event, QueuedEvent):
            queued.add(event.request_id)
        elif isinstance(event, FinishEvent):
            ended.add(event.request_id)

    unlisten = demo_engine.listen(hear)
    with serving(demo_engine) as client:
        assert ask(client, max_tokens=2).status_code == 200
        threads_before, descriptors_before = threads(), descriptors()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda seed: leave(client, random.Random(seed)), range(count)))
        assert ask(client, "What is 47 + 85?", temperature=0).json()["choices"][0]["finish_reason"] == "stop"
        until(lambda: queued == ended, WAIT)
        until(lambda: descriptors() <= descriptors_before, WAIT)
        until(lambda: threads() <= threads_before, WAIT)
        assert len(queued) > count / 4
        requests = client.get("/v1/mtplx/requests").json()["requests"]
        assert all(entry["state"] == "done" for entry in requests)
    unlisten()
