"""From the first connection to the last: where the server listens, how long anything waits, and how all of it ends."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import httpx
import pytest
from apis import APIS, body
from http_helpers import Connect, ask, frames, until
from raw_http import ASK, deaf, dial, one_answer, status
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.supervised import SupervisedEngine
from server.keys import Keys
from server.run import ServerStartError, ServerThread
from server.security import own_names

KEY = "sk-first-key-0123456789"
TO_ALL = pytest.mark.parametrize("path", APIS)
BOTH = pytest.mark.parametrize("stream", [False, True])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


class TestAddresses:
    @pytest.fixture
    def started(self, scripted: ScriptedEngine) -> Iterator[Any]:
        """Starts a server with these arguments; gives it and the line that it said."""
        running: list[ServerThread] = []

        def start(host: str = "localhost", port: int = 0, **given: Any) -> tuple[ServerThread, str]:
            server = ServerThread(scripted, host, port, **given)
            line = server.start()
            running.append(server)
            return server, line

        yield start
        for server in running:
            assert server.stop(0.5)

    def status(self, address: str, port: int, **headers: str) -> int:
        name = f"[{address}]" if ":" in address else address
        return httpx.get(f"http://{name}:{port}/v1/models", headers=headers, trust_env=False, verify=False).status_code

    def port(self, server: ServerThread) -> int:
        assert server.address is not None
        return httpx.URL(server.address).port or 0

    @IPV6
    def test_localhost_is_both_of_its_addresses_under_one_port(self, started: Any) -> None:
        server, _ = started()
        for host in ("127.0.0.1", "::1", "localhost"):
            assert self.status(host, self.port(server)) == 200

    @IPV6
    def test_a_port_that_is_taken_on_one_of_both_is_not_used(self, started: Any) -> None:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
            sock.listen()
            taken = sock.getsockname()[1]
            server, line = started(port=taken)
            assert self.port(server) > taken
            assert str(taken) in line
            assert self.status("::1", self.port(server)) == 200

    def test_one_address_is_that_one_alone(self, started: Any) -> None:
        server, _ = started("127.0.0.1")
        with pytest.raises(httpx.ConnectError):
            self.status("::1", self.port(server))

    @pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=IPV6)])
    def test_all_addresses_are_served_under_their_own_names_with_a_key(self, started: Any, host: str) -> None:
        server, line = started(host, keys=Keys([KEY]), allow_hosts=["Desk.Example"])
        assert "encrypted" in line
        port, key = self.port(server), {"x-api-key": KEY}
        assert self.status("127.0.0.1", port) == 401
        for name in ("127.0.0.1", "localhost:1", "desk.example", *own_names(host)):
            assert self.status("127.0.0.1", port, host=name, **key) == 200
        for name in ("evil.example", "192.0.2.1", "0.0.0.0", "[::2]", "evil.local", "desk.example.evil.example"):
            assert self.status("127.0.0.1", port, host=name, **key) == 403
        if host == "::":
            assert self.status("::1", port, **key) == 200

    def test_a_name_that_was_allowed_is_served_on_loopback_too(self, started: Any) -> None:
        server, _ = started(allow_hosts=["desk.example"])
        assert self.status("127.0.0.1", self.port(server), host="desk.example:443") == 200
        assert self.status("127.0.0.1", self.port(server), host="evil.example") == 403

    @pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "", "x" * 300, "1.2.3.4.5", "é"])
    def test_what_is_no_address_of_this_machine_is_refused(self, scripted: ScriptedEngine, host: str) -> None:
        with pytest.raises(ServerStartError, match=r"no address|can not be used"):
            ServerThread(scripted, host, 0, keys=Keys([KEY])).start()


class TestWaiting:
    @TO_ALL
    def test_a_request_that_is_never_begun_is_told_to_come_back(
        self, connect: Connect, scripted: ScriptedEngine, path: str
    ) -> None:
        scripted.script = ScriptedRow.wait
        response = connect(keep_alive_s=0.02, queue_wait_s=0.05).post(path, json=body(path))
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 1
        assert "too busy" in response.text
        until(scripted.rows[0].finished.is_set)
        assert scripted.rows[0].cancelled.is_set()

    @TO_ALL
    def test_a_stream_that_is_never_begun_ends_with_that_error(
        self, connect: Connect, scripted: ScriptedEngine, path: str
    ) -> None:
        scripted.script = ScriptedRow.wait
        response = connect(keep_alive_s=0.02, queue_wait_s=0.05).post(path, json=body(path, stream=True))
        assert "too busy" in response.text
        until(scripted.rows[0].finished.is_set)

    def test_a_request_that_has_begun_may_take_its_time(self, connect: Connect, scripted: ScriptedEngine) -> None:
        gate = threading.Event()

        def script(row: ScriptedRow) -> None:
            row.prefill(1)
            row.wait(gate)
            row.say("late")
            row.finish()

        scripted.script = script
        client = connect(keep_alive_s=0.02, queue_wait_s=0.05)
        with client.stream("POST", "/v1/chat/completions", json=body("/v1/chat/completions", stream=True)) as response:
            lines = response.iter_lines()
            for _ in range(10):
                while next(lines) != ": waiting":
                    pass
            gate.set()
            assert any("late" in line for line in lines)


class TestTheEnd:
    @TO_ALL
    @BOTH
    def test_each_answer_ends_with_an_error_that_says_why(
        self, scripted: ScriptedEngine, path: str, stream: bool
    ) -> None:
        def script(row: ScriptedRow) -> None:
            row.say("begun")
            row.wait()

        scripted.script = script
        server = ServerThread(scripted, port=0)
        server.start()
        with httpx.Client(base_url=server.address or "", trust_env=False, verify=False, timeout=20) as client:
            answers: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: answers.append(client.post(path, json=body(path, stream=stream))))
            asking.start()
            until(lambda: scripted.rows)
            assert server.stop(0.1)
            asking.join(10)
        (answer,) = answers
        assert answer.status_code == (200 if stream else 503)
        assert "shutting down" in answer.text
        assert scripted.rows[0].finished.is_set()

    def test_nobody_who_holds_a_connection_holds_the_server(self, scripted: ScriptedEngine) -> None:
        def flood(row: ScriptedRow) -> None:
            for _ in range(200):
                row.say("x" * 65536)
            row.wait()

        scripted.script = flood
        before, others = len(os.listdir("/dev/fd")), set(threading.enumerate())  # of tests that ran in this process
        server = ServerThread(scripted, port=0)
        server.start()
        with httpx.Client(base_url=server.address or "", trust_env=False, verify=False) as client:
            silent, half, within, idle = (dial(client) for _ in range(4))
            unread = deaf(client)
            half.sendall(ASK)
            within.sendall(ASK + b"Content-Length: 1000\r\n\r\n{")
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status(one_answer(idle)) == 200
            content = json.dumps(body("/v1/chat/completions", stream=True)).encode()
            unread.sendall(ASK + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            until(lambda: scripted.rows)
            assert server.stop(0.3)
            for sock in (silent, half, within, idle, unread):
                sock.close()
        until(scripted.rows[0].finished.is_set)
        until(lambda: len(os.listdir("/dev/fd")) <= before)
        own = set(threading.enumerate()) - others
        assert not any(thread.name == "mtplx-server" for thread in own if thread.is_alive())


class TestTheEngine:
    def test_an_engine_that_fails_is_back_without_the_server_noticing_more_than_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loading, gate, load = threading.Event(), threading.Event(), ThreadEngine._load

        def fail() -> None:
            raise RuntimeError("out of the loop")

        def late(engine: ThreadEngine) -> Any:
            loading.set()
            assert gate.wait(30)
            return load(engine)

        with closing(SupervisedEngine(partial(ThreadEngine, EngineConfig()))) as engine:
            engine.wait_ready(60)
            monkeypatch.setattr(ThreadEngine, "_load", late)
            server = ServerThread(engine, port=0)
            server.start()
            with httpx.Client(base_url=server.address or "", trust_env=False, verify=False, timeout=60) as client:
                fields: dict[str, Any] = {"seed": 5, "max_tokens": 12}
                before = ask(client, "Count from 1 to 12.", **fields).json()["choices"]
                endless = body("/v1/chat/completions", "Count.", stream=True, ignore_eos=True, max_tokens=1500)
                with client.stream("POST", "/v1/chat/completions", json=endless) as response:
                    chunks = response.iter_raw()
                    text = next(chunks)
                    runner = engine._made.result()._runner
                    assert runner is not None
                    runner.turn = fail  # type: ignore[method-assign]
                    text += b"".join(chunks)
                got = frames(httpx.Response(200, headers=response.headers, content=text))
                assert "out of the loop" in got[-2]["error"]["message"]
                assert got[-1] == "[DONE]"
                assert loading.wait(30)
                health, ready = client.get("/health"), client.get("/ready")
                assert (health.status_code, health.json()["status"]) == (200, "loading")
                assert (ready.status_code, ready.json()["status"]) == (503, "loading")
                assert ask(client).json()["error"]["code"] == "model_loading"
                gate.set()
                until(lambda: client.get("/ready").status_code == 200, 60)
                assert ask(client, "Count from 1 to 12.", **fields).json()["choices"] == before
                assert engine.restarts == 1
            assert server.stop(1.0)
