"""What somebody would send who wants to read, to stop or to fill this machine. Each gets its answer, and the next
request is served all the same.

Keys are in test_keys, pages and sizes in test_security, schemas and templates where these are tested.
"""

import gzip
import json
import logging
import os
import socket
from collections.abc import Iterator

import httpx
import pytest
from apis import APIS, body
from http_helpers import Connect, ask, until
from raw_http import ASK, BODY, deaf, dial, ending, one_answer, raw, status
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.chat import ChatFormat
from server.logs import log, prepare

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def lives_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each attack a plain question is answered."""
    client = request.getfixturevalue("client") if "client" in request.fixturenames else None
    yield
    if client is not None:
        request.getfixturevalue("scripted").reset()
        assert ask(client).status_code == 200


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def drip(sock: socket.socket, piece: bytes) -> bytes:
    """Send a byte or so whenever nothing comes; the answer is everything until the server closes."""
    received = b""
    sock.settimeout(0.02)
    while True:
        try:
            chunk = sock.recv(65536)
        except TimeoutError:
            try:
                sock.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                return received
            continue
        except ConnectionResetError:
            return received
        if not chunk:
            return received
        received += chunk


class TestSlowness:
    def test_headers_that_do_not_end_are_answered_and_closed(self, connect: Connect) -> None:
        client = connect(header_s=0.2)
        with dial(client) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            answer = drip(sock, b"x")
        assert status(answer) == 408
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"

    def test_a_connection_that_says_nothing_is_closed_without_a_word(self, connect: Connect) -> None:
        with dial(connect(header_s=0.2)) as sock:
            assert ending(sock) == b""

    def test_a_second_request_has_the_same_time_for_its_headers(self, connect: Connect) -> None:
        with dial(connect(header_s=0.2)) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status(one_answer(sock)) == 200
            assert status(drip(sock, b"G")) == 408

    def test_an_idle_connection_is_closed_after_its_time_and_not_after_that_for_headers(self, connect: Connect) -> None:
        client = connect(header_s=0.05, idle_s=1)
        with dial(client) as sock:
            for _ in range(2):
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert status(one_answer(sock)) == 200
                sock.settimeout(0.4)
                with pytest.raises(TimeoutError):
                    sock.recv(1)
                sock.settimeout(10)
            assert sock.recv(1) == b""

    def test_a_body_that_pauses_is_refused_and_the_connection_closed(
        self, connect: Connect, scripted: ScriptedEngine
    ) -> None:
        with dial(connect(body_s=0.2)) as sock:
            sock.sendall(ASK + b"Content-Length: 1000\r\n\r\n{")
            answer = ending(sock)
        assert status(answer) == 408
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("The body came too slowly")
        assert scripted.rows == []

    @pytest.mark.parametrize("framing", [b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
    def test_a_body_that_drips_is_refused_though_it_never_pauses(
        self, connect: Connect, scripted: ScriptedEngine, framing: bytes
    ) -> None:
        client = connect(body_s=0.3, body_rate=1e6)
        with dial(client) as sock:
            sock.sendall(ASK + framing)
            assert status(drip(sock, b"1\r\n{\r\n" if b"chunked" in framing else b"{")) == 408
        assert scripted.rows == []

    def test_a_refused_body_is_thrown_away_for_a_while_and_no_longer(self, connect: Connect) -> None:
        client = connect(body_s=0.3, body_bytes=100)
        with dial(client) as sock:
            sock.sendall(ASK + b"Content-Length: 100000\r\n\r\n")
            assert status(drip(sock, b"{")) == 413

    @pytest.mark.parametrize("path", APIS)
    def test_a_reader_that_takes_nothing_is_given_up_and_its_row_freed(
        self, connect: Connect, scripted: ScriptedEngine, path: str
    ) -> None:
        def flood(row: ScriptedRow) -> None:
            for _ in range(200):
                row.say("x" * 65536)
            row.wait()

        scripted.script = flood
        client = connect(unread_s=0.2)
        content = json.dumps(body(path, stream=True)).encode()
        with deaf(client) as sock:
            sock.sendall(
                ASK.replace(b"/v1/chat/completions", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(content)
            )
            sock.sendall(content)
            until(lambda: scripted.rows and scripted.rows[0].finished.is_set())
        assert scripted.rows[0].cancelled.is_set()

    def test_an_answer_that_nobody_takes_holds_no_connection(self, connect: Connect, scripted: ScriptedEngine) -> None:
        def lengthy(row: ScriptedRow) -> None:
            row.say("x" * 12 * MEGABYTE)
            row.finish()

        scripted.script = lengthy
        client = connect(linger_s=0.2, unread_s=0.2)
        before = descriptors()
        with deaf(client) as sock:
            sock.sendall(ASK + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
            until(lambda: scripted.rows and scripted.rows[0].finished.is_set())
            until(lambda: descriptors() == before + 1)


class TestNumbers:
    def test_200_half_open_connections_stop_nobody_and_all_go(self, connect: Connect) -> None:
        client = connect(header_s=1.0)
        before = descriptors()
        socks = [dial(client) for _ in range(200)]
        try:
            for number, sock in enumerate(socks):
                sock.sendall((ASK + b"Content-Le")[: number % 90])
            assert ask(client).status_code == 200
            for sock in socks:
                answer = ending(sock)
                assert answer == b"" or status(answer) == 408
        finally:
            for sock in socks:
                sock.close()
        until(lambda: descriptors() <= before + 2)  # those of the client's own connection

    def test_the_oldest_idle_connection_makes_room_for_a_new_one(self, connect: Connect) -> None:
        client = connect(connections=10)
        before = descriptors()
        socks = []
        try:
            for _ in range(50):
                socks.append(dial(client))
                assert ask(client).status_code == 200
            assert descriptors() <= before + 50 + 12
            assert all(ending(sock) == b"" for sock in socks[:35])
        finally:
            for sock in socks:
                sock.close()

    def test_where_all_connections_are_busy_the_next_is_told_when_to_come_back(
        self, connect: Connect, scripted: ScriptedEngine
    ) -> None:
        def script(row: ScriptedRow) -> None:
            row.say("begun")
            row.wait()

        scripted.script = script
        client = connect(connections=2)
        with (
            client.stream("POST", "/v1/chat/completions", json=body("/v1/chat/completions", stream=True)) as first,
            client.stream("POST", "/v1/messages", json=body("/v1/messages", stream=True)) as second,
        ):
            assert (first.status_code, second.status_code) == (200, 200)
            refused = httpx.get(client.base_url.join("/health"), trust_env=False, verify=False)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
            assert int(refused.headers["retry-after"]) >= 1
        until(lambda: httpx.get(client.base_url.join("/health"), trust_env=False, verify=False).status_code == 200)

    def test_bodies_of_all_requests_together_are_bounded(self, connect: Connect, scripted: ScriptedEngine) -> None:
        scripted.script = ScriptedRow.wait
        client = connect(bodies_bytes=1000)
        large = body("/v1/chat/completions", "x" * 600, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=large) as first:
            assert first.status_code == 200
            refused = client.post("/v1/chat/completions", json=large)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
            assert int(refused.headers["retry-after"]) >= 1
        until(lambda: scripted.rows[0].finished.is_set())
        with client.stream("POST", "/v1/chat/completions", json=large) as again:
            assert again.status_code == 200

    def test_50_megabytes_in_chunks_are_refused(self, client: httpx.Client, scripted: ScriptedEngine) -> None:
        chunks = (b"[" * MEGABYTE for _ in range(50))
        response = client.post("/v1/chat/completions", content=chunks, headers={"Content-Type": "application/json"})
        assert response.status_code == 413
        assert scripted.rows == []

    @pytest.mark.parametrize("path", APIS)
    @pytest.mark.parametrize(
        "fields",
        [
            b'"n": 1000000', b'"n": 1e300', b'"temperature": NaN', b'"temperature": Infinity', b'"top_p": -Infinity',
            b'"stream": 1', b'"max_tokens": "\\ud800"', b'"stop": "\\ud800"', b'"stop": "\xff"',
            b'"logit_bias": {"-1": 1}',
            b'"logit_bias": {"99999999": 1}', b'"x": ' + b"[" * 100_000 + b"]" * 100_000, b'"x": ' + b'{"a":' * 100_000,
        ],
        ids=lambda fields: fields[:30].decode("latin-1"),
    )  # fmt: skip
    def test_fields_out_of_all_bounds_reach_no_engine(
        self, client: httpx.Client, scripted: ScriptedEngine, path: str, fields: bytes
    ) -> None:
        content = json.dumps(body(path)).encode()[:-1] + b", " + fields + b"}"
        response = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code in (200, 400)
        assert response.status_code == 400 or response.headers["x-mtplx-ignored-fields"]
        for row in scripted.rows:
            row.request.check(6144)

    @pytest.mark.parametrize("path", APIS)
    def test_numbers_that_mean_all_are_cut_to_what_there_is(
        self, client: httpx.Client, scripted: ScriptedEngine, path: str
    ) -> None:
        most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        response = client.post(path, json=body(path, **{most: 10**18}))
        assert response.status_code == 200, response.text
        request = scripted.rows[0].request
        assert request.max_tokens is not None
        assert request.max_tokens + len(request.prompt) <= 2048


class TestNames:
    NAMES = (
        "../../../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "https://evil.example/model", "demo-13m/../x",
        "demo-13m\x00", "..\\..\\x", "org/repository", "~", "", " demo-13m", "\U0001f600", "x" * 100_000,
    )  # fmt: skip

    @pytest.mark.parametrize("path", APIS)
    def test_a_model_is_a_name_and_never_a_path_or_a_repository(
        self, client: httpx.Client, scripted: ScriptedEngine, path: str
    ) -> None:
        for name in self.NAMES:
            response = client.post(path, json={**body(path), "model": name})
            assert response.status_code == 404, (name[:40], response.text[:300])
            assert len(response.text) < 2000
            assert "root:" not in response.text
        assert scripted.rows == []

    @pytest.mark.parametrize(
        "target",
        [
            b"/v1/models/../../etc/passwd", b"/v1/models/..%2f..%2fetc%2fpasswd", b"/v1/models/%2e%2e/%2e%2e/x",
            b"/v1/models/..%252f..%252fetc%252fpasswd", b"/v1/models/file:///etc/passwd", b"/v1/models//etc/passwd",
            b"/v1/models/%00", b"/v1/models/demo-13m%00.txt", b"/v1/models/%ff%fe", b"/v1/models/%0d%0aSet-Cookie:%20a",
            b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/static/../../etc/passwd", b"/....//....//etc/passwd",
            b"http://evil.example/v1/models", b"//evil.example/v1/models", b"/v1/mtplx/requests/../../../etc/passwd",
            b"/v1/mtplx/requests/%2e%2e%2f", b"*", b"/" + b"a" * 30_000, b"/" + b"/" * 30_000 + b"x",
        ],
        ids=lambda target: target[:40].decode(),
    )  # fmt: skip
    def test_a_path_leads_nowhere_but_to_a_route(self, client: httpx.Client, target: bytes) -> None:
        answer = raw(client, b"GET " + target + b" HTTP/1.1", b"Host: localhost")
        assert status(answer) == 404
        assert b"root:" not in answer
        assert b"\r\nSet-Cookie" not in answer
        assert len(answer) < 2000


class TestFraming:
    SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"

    @pytest.mark.parametrize(
        "headers",
        [
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 5\r\nContent-Length: 50\r\n",
            b"Content-Length: 5, 50\r\n", b"Content-Length: -5\r\n", b"Content-Length: +5\r\n",
            b"Content-Length: 0x5\r\n",
            b"Content-Length: " + b"9" * 5000 + b"\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
            b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding : chunked\r\n",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: \x0bchunked\r\n",
            b"Host: localhost\r\nContent-Length: 5\r\n", b"X: a\x00b\r\nContent-Length: 5\r\n",
            b": nothing\r\nContent-Length: 5\r\n",
        ],
        ids=lambda headers: headers[:60].decode("latin-1"),
    )  # fmt: skip
    def test_a_length_that_two_readers_would_read_differently_is_refused_and_nothing_after_it_is_read(
        self, client: httpx.Client, scripted: ScriptedEngine, headers: bytes
    ) -> None:
        with dial(client) as sock:
            sock.sendall(ASK + headers + b"\r\n0\r\n\r\n" + self.SMUGGLED)
            answer = ending(sock)
        assert status(answer) == 400
        assert answer.count(b"content-type: ") == 1
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert scripted.rows == []

    @pytest.mark.parametrize(
        "chunk", [b"zz\r\n{}\r\n", b"-1\r\n\r\n", b"ffffffffffffffffffffffff\r\n{", b"5\r\n{}{}{}\r\n"]
    )
    def test_a_broken_chunk_ends_the_connection(
        self, client: httpx.Client, scripted: ScriptedEngine, chunk: bytes
    ) -> None:
        with dial(client) as sock:
            sock.sendall(ASK + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
            assert status(ending(sock)) == 400
        assert scripted.rows == []

    def test_a_broken_chunk_of_a_body_that_is_refused_already_ends_the_connection(self, connect: Connect) -> None:
        with dial(connect(body_bytes=10)) as sock:
            sock.sendall(ASK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + b"x" * 255 + b"\r\n")
            assert status(one_answer(sock)) == 413
            sock.sendall(b"zz\r\n\r\n")
            assert ending(sock) == b""

    @pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"])
    def test_a_bomb_is_never_unpacked(self, client: httpx.Client, coding: str) -> None:
        bomb = gzip.compress(b" " * 10 * MEGABYTE)
        headers = {"Content-Type": "application/json", "Content-Encoding": coding}
        assert client.post("/v1/chat/completions", content=bomb, headers=headers).status_code == 415

    @pytest.mark.parametrize(
        "line",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
            b"PRI * HTTP/2.0",
            b"GET /\x00 HTTP/1.1",
            b"GET / HTTP/9.9",
            b"GET  /",
            b"\xff" * 99,
        ],
        ids=lambda line: line[:20].decode("latin-1"),
    )
    def test_what_is_no_http_is_refused(self, client: httpx.Client, line: bytes) -> None:
        answer = raw(client, line, b"Host: localhost")
        assert answer == b"" or status(answer) in (400, 505)

    def test_no_preflight_is_ever_granted(self, client: httpx.Client) -> None:
        own = f"http://{client.base_url.netloc.decode()}"
        for origin in ("https://evil.example", "null", own):
            response = client.options(
                "/v1/chat/completions",
                headers={
                    "Origin": origin,
                    "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "content-type",
                    "Access-Control-Request-Private-Network": "true",
                },
            )
            assert response.status_code == (405 if origin == own else 403)
            assert not any(name.startswith("access-control") for name in response.headers)


class TestText:
    @pytest.mark.parametrize("path", [path for path in APIS if path != "/v1/completions"])
    def test_control_tokens_in_what_a_user_says_are_text(
        self, client: httpx.Client, scripted: ScriptedEngine, chat_format: ChatFormat, path: str
    ) -> None:
        names = [chat_format.decode([token]) for token in sorted(chat_format.special_ids)]
        for text in ("hello", "".join(names), *names):
            assert client.post(path, json=body(path, text)).status_code == 200, text
        plain, *hostile = ([t for t in row.request.prompt if t in chat_format.special_ids] for row in scripted.rows)
        assert all(found == plain for found in hostile)
        assert len(names) > 3

    @pytest.mark.parametrize("path", APIS)
    def test_any_character_is_taken_or_refused(self, client: httpx.Client, scripted: ScriptedEngine, path: str) -> None:
        for text in ("\x00", "\ufeff", "\u2028", "\x1b[2J", "\U0010ffff", "\uffff", "a\r\nb", "\u202e"):
            assert client.post(path, json=body(path, text)).status_code == 200, text
        content = json.dumps(body(path, "PLACE")).encode()
        for broken in (b"\\ud800", b"\\udc00\\ud800", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\x00", b"\x00"):
            response = client.post(
                path, content=content.replace(b"PLACE", broken), headers={"Content-Type": "application/json"}
            )
            assert response.status_code == 400, broken

    def test_a_log_line_can_not_be_forged(self, caplog: pytest.LogCaptureFixture) -> None:
        prepare()
        evil = "\n2026-01-01 ERROR forged\r\x1b[2J\u2028\x9b"
        try:
            raise ValueError(evil)
        except ValueError as error:
            log.error("%s %s", evil, "x" * 10_000, exc_info=error)
        first, *rest = caplog.handler.format(caplog.records[-1]).split("\n")
        assert "\\n2026-01-01 ERROR forged\\r\\x1b[2J\\u2028\\x9b" in first
        assert len(first) < 1500
        assert rest
        assert all(line.startswith("  ") for line in rest)
        assert not any(ord(character) < 32 for line in (first, *rest) for character in line)

    @pytest.mark.parametrize("path", APIS)
    def test_what_was_said_is_in_no_log(
        self, client: httpx.Client, scripted: ScriptedEngine, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def script(row: ScriptedRow) -> None:
            row.say("the answer is quince")
            row.finish("error", error="it broke")

        with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "server"):
            for stream in (False, True):
                client.post(path, json=body(path, "the secret is medlar", stream=stream))
                scripted.script = script
                client.post(path, json=body(path, "the secret is medlar", stream=stream))
                client.post(path, json={**body(path), "messages": "medlar", "prompt": [["medlar"]], "input": 5})
        assert scripted.rows
        assert "medlar" not in caplog.text
        assert "quince" not in caplog.text

    def test_headers_are_not_repeated(self, client: httpx.Client) -> None:
        canary = "canary-3141"
        headers = dict.fromkeys(("x-request-id", "user-agent", "referer", "cookie", "forwarded", "via"), canary)
        for path in ("/health", "/v1/models", "/nowhere", "/metrics"):
            response = client.get(path, headers=headers)
            assert canary not in str(response.headers)
            assert canary not in response.text
