"""Who may ask, and how much they may send. Real sockets; the attacker writes raw bytes."""

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from http_helpers import Connect, ask
from raw_http import BODY, raw, status
from scripted_engine import ScriptedEngine


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.", "127.0.0.1:80:80", "[::1]x", "[::2]",
     "localhost@evil.example", "0.0.0.0:8000", "169.254.169.254", "127.0.0.1:http", "LOCALHOST:1x"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/nowhere"])
def test_foreign_host_is_refused_on_every_path(client: httpx.Client, host: str, path: str) -> None:
    response = client.get(path, headers={"Host": host})
    assert response.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LocalHost:9", "127.0.0.1:1", "[::1]:8000", "[::1]"])
def test_loopback_names_are_served_on_any_port(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_rebound_page_can_not_chat(client: httpx.Client, scripted: ScriptedEngine) -> None:
    response = client.post(
        "/v1/chat/completions",
        content=BODY,
        headers={"Host": "evil.example", "Origin": "http://evil.example", "Content-Type": "application/json"},
    )
    assert response.status_code == 403
    assert scripted.rows == []


def test_request_without_a_host_is_refused(client: httpx.Client) -> None:
    assert status(raw(client, b"GET /v1/models HTTP/1.0")) == 403
    assert status(raw(client, b"GET /v1/models HTTP/1.1")) == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_web_pages_are_refused(client: httpx.Client, scripted: ScriptedEngine, headers: dict[str, str]) -> None:
    response = ask_with(client, headers)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
    assert not any(name.startswith("access-control") for name in response.headers)
    assert scripted.rows == []


def test_own_page_and_plain_programs_are_served(client: httpx.Client) -> None:
    own = f"http://{urlsplit(str(client.base_url)).netloc}"
    assert ask_with(client, {"Origin": own, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert ask_with(client, {"Sec-Fetch-Mode": "cors"}).status_code == 200  # what node's fetch sends


def ask_with(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    return client.post("/v1/chat/completions", content=BODY, headers={"Content-Type": "application/json", **headers})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "APPLICATION/JSON"}, 200),
        ({}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "text/plain; application/json"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "identity"}, 200),
    ],
)
def test_only_json_bodies_are_read(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    assert client.post("/v1/chat/completions", content=BODY, headers=headers).status_code == status


def test_page_must_name_the_type(client: httpx.Client) -> None:
    own = f"http://{urlsplit(str(client.base_url)).netloc}"
    assert client.post("/v1/chat/completions", content=BODY, headers={"Origin": own}).status_code == 415


def test_large_body_is_refused_by_its_stated_length(client: httpx.Client, scripted: ScriptedEngine) -> None:
    response = ask(client, "hi", metadata={"pad": "x" * 50_000_000})
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"
    assert ask(client).status_code == 200


def test_large_body_of_unstated_length_is_refused_while_it_comes(connect: Connect) -> None:
    client = connect(body_bytes=10_000)

    def chunks() -> Any:
        yield BODY[:-1] + b',"pad":"'
        for _ in range(100):
            yield b"x" * 1000
        yield b'"}'

    response = client.post("/v1/chat/completions", content=chunks(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert client.post("/v1/chat/completions", content=BODY).status_code == 200


def test_large_headers_are_refused(client: httpx.Client) -> None:
    answer = raw(client, b"GET /health HTTP/1.1", b"Host: localhost", b"X-Pad: " + b"x" * 20_000_000)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert client.get("/health", headers={f"X-{i}": "x" for i in range(200)}).status_code == 431
    assert client.get("/health").status_code == 200


def test_deep_json_is_refused(client: httpx.Client) -> None:
    for deep in (b"[" * 100_000, b'{"messages":' + b'{"a":' * 100_000):
        response = client.post("/v1/chat/completions", content=deep)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    assert client.get("/health").status_code == 200


def test_websockets_are_not_spoken(client: httpx.Client) -> None:
    answer = raw(
        client, b"GET / HTTP/1.1", b"Host: evil.example", b"Upgrade: websocket", b"Sec-WebSocket-Key: eA==",
        b"Sec-WebSocket-Version: 13",
    )  # fmt: skip
    assert status(answer) == 403


def test_every_answer_has_an_id_of_the_servers_making(client: httpx.Client, scripted: ScriptedEngine) -> None:
    ids = {client.get("/health", headers={"x-request-id": "evil"}).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(one.startswith("req_") for one in ids)
