"""The server's life: ports, start, stop, signals."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from http_helpers import frames, until
from scripted_engine import ScriptedEngine, ScriptedRow

from server.run import ServerStartError, ServerThread

BODY = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_taken_port_is_said_and_the_next_free_one_used(scripted: ScriptedEngine, taken: int) -> None:
    server = ServerThread(scripted, port=taken)
    line = server.start()
    try:
        assert server.address is not None
        port = int(server.address.rpartition(":")[2])
        assert taken < port <= taken + 20
        assert str(taken) in line
        assert f"{server.address}/v1" in line
        assert httpx.get(f"{server.address}/health", trust_env=False).status_code == 200
    finally:
        assert server.stop(1.0)


def test_stopped_server_frees_its_port_at_once(scripted: ScriptedEngine) -> None:
    first = ServerThread(scripted, port=0)
    first.start()
    assert first.address is not None
    port = int(first.address.rpartition(":")[2])
    httpx.get(f"{first.address}/health", trust_env=False)
    assert first.stop(1.0)
    assert first.address is None
    again = ServerThread(scripted, port=port)
    again.start()
    assert again.address == f"http://127.0.0.1:{port}"
    assert again.stop(1.0)
    assert again.stop(1.0), "a second stop changes nothing"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.com", ""])
def test_open_bind_is_refused(scripted: ScriptedEngine, host: str) -> None:
    with pytest.raises(ServerStartError, match="keys"):
        ServerThread(scripted, host, 0).start()


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_port_that_does_not_exist_is_refused(scripted: ScriptedEngine, port: int) -> None:
    with pytest.raises(ServerStartError, match="does not exist"):
        ServerThread(scripted, port=port).start()


def test_last_port_taken_is_an_error_not_a_crash(scripted: ScriptedEngine) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 65535))
        sock.listen()
        with pytest.raises(ServerStartError, match="taken"):
            ServerThread(scripted, port=65535).start()


def test_stop_lets_a_running_answer_finish(scripted: ScriptedEngine) -> None:
    gate = threading.Event()

    def script(row: ScriptedRow) -> None:
        row.say("begin")
        row.wait(gate)
        row.say(" and end")
        row.finish()

    response, stopped = _stop_during(scripted, script, grace=10, then=gate.set)
    got = frames(response)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in got[:-1]) == "begin and end"
    assert got[-1] == "[DONE]"
    assert stopped


def test_stop_ends_what_does_not_finish_with_an_error_frame(scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("begin")
        row.wait()

    response, stopped = _stop_during(scripted, script, grace=0.3)
    got = frames(response)
    assert got[-2]["error"]["code"] == "shutting_down"
    assert got[-1] == "[DONE]"
    assert stopped
    until(scripted.rows[0].finished.is_set)


def _stop_during(scripted: ScriptedEngine, script, grace: float, then=lambda: None) -> tuple[httpx.Response, bool]:
    """Stop the server while an answer streams; `then` is called once it has begun to."""
    scripted.script = script
    server = ServerThread(scripted, port=0)
    server.start()
    stopped: list[bool] = []
    with httpx.Client(base_url=server.address, trust_env=False, timeout=20) as client:
        with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
            lines = response.iter_raw()
            text = next(lines)
            stopping = threading.Thread(target=lambda: stopped.append(server.stop(grace)))
            stopping.start()
            until(lambda: _refused(client))
            then()
            text += b"".join(lines)
        stopping.join(10)
    return httpx.Response(200, headers=response.headers, content=text), stopped == [True]


def _refused(client: httpx.Client) -> bool:
    try:
        httpx.get(client.base_url.join("/health"), trust_env=False, timeout=5)
    except httpx.TransportError:
        return True
    return False


SERVE = """
import sys
sys.path[:0] = {paths!r}
from scripted_engine import ScriptedEngine
from server.run import ServerThread, serve
def script(row):
    row.say("begin")
    row.wait()
chat = None
if {how!r} == "streaming":
    from pathlib import Path
    import engine
    from engine.chat import load_chat_format
    chat = load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m")
scripted = ScriptedEngine(chat, script)
if {how!r} == "failing":
    scripted.fail("it broke")
if {how!r} == "restarting":
    def say(line):
        print(line, flush=True)
        if line.startswith("Serving"):
            scripted.restart("starting again after a failure: it broke")
else:
    def say(line):
        print(line, flush=True)
sys.exit(serve(ServerThread(scripted, port=0), say=say, grace=30))
"""


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    code = SERVE.format(paths=[str(Path(__file__).parent)], how=request.param)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("serving", ["idle"], indirect=True)
def test_sigterm_ends_serve_quietly(serving: subprocess.Popen[str]) -> None:
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith("Serving at http://127.0.0.1:")
    serving.send_signal(signal.SIGTERM)
    out, err = serving.communicate(timeout=20)
    assert serving.returncode == 0
    assert "Traceback" not in err
    assert "Stopping" in out


@pytest.mark.parametrize("serving", ["streaming"], indirect=True)
def test_second_signal_ends_answers_at_once_with_an_error_frame(serving: subprocess.Popen[str]) -> None:
    assert serving.stdout is not None
    url = serving.stdout.readline().split()[2].rstrip(".")
    with httpx.stream(
        "POST", f"{url}/chat/completions", json={**BODY, "stream": True}, trust_env=False, timeout=20
    ) as response:
        lines = response.iter_lines()
        assert "assistant" in next(lines)
        serving.send_signal(signal.SIGINT)
        assert "30 s" in serving.stdout.readline()
        serving.send_signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert "shutting_down" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    serving.communicate(timeout=10)
    assert serving.returncode == 0


@pytest.mark.parametrize("serving", ["failing"], indirect=True)
def test_serve_ends_with_the_reason_where_the_engine_failed(serving: subprocess.Popen[str]) -> None:
    out, err = serving.communicate(timeout=20)
    assert "it broke" in out
    assert serving.returncode == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("serving", ["restarting"], indirect=True)
def test_serve_says_when_its_engine_starts_again_and_goes_on(serving: subprocess.Popen[str]) -> None:
    assert serving.stdout is not None
    lines = [serving.stdout.readline() for _ in range(3)]
    assert lines[0].startswith("Serving at")
    assert lines[1:] == ["starting again after a failure: it broke\n", "demo-13m is ready again.\n"]
    serving.send_signal(signal.SIGTERM)
    serving.communicate(timeout=20)
    assert serving.returncode == 0
