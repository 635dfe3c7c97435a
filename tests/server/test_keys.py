"""Who has no key gets nothing, at no cost; who has one is not told apart by anything but it."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from http_helpers import ask, backend_over, until
from raw_http import ASK, dial, ending, one_answer, status
from scripted_engine import ScriptedEngine, ScriptedRow

from server.app import create_app
from server.keys import SHORTEST, VARIABLE, Keys, KeysError, load_keys
from server.limits import Limits
from server.run import ServerThread

KEY, OTHER = "sk-first-key-0123456789", "sk-other-key-0123456789"
Keyed = Callable[..., httpx.Client]


@pytest.fixture
def keyed(scripted: ScriptedEngine) -> Iterator[Keyed]:
    """Starts a server that takes these keys, and gives a client that sends none."""
    running: list[tuple[ServerThread, httpx.Client]] = []

    def start(*keys: str, **limits: int) -> httpx.Client:
        server = ServerThread(scripted, port=0, keys=Keys(keys), limits=Limits(**limits))
        server.start()
        client = httpx.Client(base_url=server.address or "", timeout=10, trust_env=False, verify=False)
        running.append((server, client))
        return client

    yield start
    for server, client in running:
        client.close()
        assert server.stop(0.5)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def file_of(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(mode)
    return file


def takes(keys: Keys, *given: str) -> list[bool]:
    return [keys.caller([key.encode()]) is not None for key in given]


def test_a_file_has_a_key_a_line_and_comments(tmp_path: Path) -> None:
    file = file_of(tmp_path, f"# of the desk\n\n  {KEY}  \r\n#{OTHER}\n{KEY}\nsk-third-key-0123456789")
    keys = load_keys(file, {})
    assert takes(keys, KEY, "sk-third-key-0123456789", OTHER, "", "#") == [True, True, False, False, False]


def test_the_environment_has_one_as_well(tmp_path: Path) -> None:
    assert not load_keys(None, {})
    assert not load_keys(None, {VARIABLE: ""})
    assert takes(load_keys(None, {VARIABLE: KEY}), KEY, OTHER) == [True, False]
    assert takes(load_keys(file_of(tmp_path, OTHER), {VARIABLE: KEY}), KEY, OTHER) == [True, True]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_file_that_others_can_use_is_refused_with_what_to_run(tmp_path: Path, mode: int) -> None:
    file = file_of(tmp_path, KEY, mode)
    with pytest.raises(KeysError, match=f"chmod 600 {file}"):
        load_keys(file, {})
    file.chmod(0o400)
    assert load_keys(file, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("# nothing\n\n", "no key"),
        ("x" * (SHORTEST - 1), f"{SHORTEST} or more"),
        (f"{KEY}\n{OTHER} and more", "Line 2"),
        (f"{KEY}\x00", "printable"),
        (f"{KEY}é", "printable"),
        (b"\xff\xfe" + KEY.encode("utf-16-le"), "printable"),
        (f"{KEY}\n" * 10_000, "bytes"),
    ],
)
def test_what_is_no_key_is_refused_without_repeating_it(tmp_path: Path, text: str | bytes, why: str) -> None:
    with pytest.raises(KeysError, match=why) as refused:
        load_keys(file_of(tmp_path, text), {})
    assert "key-0123" not in str(refused.value)
    assert "xxx" not in str(refused.value)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("missing", ".", "pipe"):
        with pytest.raises(KeysError, match="file"):
            load_keys(tmp_path / name, {})
    with pytest.raises(KeysError, match=VARIABLE):
        load_keys(None, {VARIABLE: "too short"})


OPEN = {("GET", "/"), ("HEAD", "/"), ("GET", "/health"), ("HEAD", "/health"), ("GET", "/ready"), ("HEAD", "/ready")}


def routes_of(router: Any) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from routes_of(route.original_router)


def test_every_route_but_the_probes_needs_a_key(keyed: Keyed, scripted: ScriptedEngine) -> None:
    client = keyed(KEY)
    routes = list(routes_of(create_app(backend_over(scripted))))
    paths = {(method, re.sub(r"\{.*?\}", "x", route.path)) for route in routes for method in route.methods or ()}
    assert paths > OPEN
    for method, path in sorted(paths):
        response = client.request(method, path, json={} if method == "POST" else None)
        assert (response.status_code == 401) == ((method, path) not in OPEN), (method, path)
    assert scripted.rows == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/health"), ("OPTIONS", "/health"), ("DELETE", "/"), ("GET", "/health/"), ("GET", "//health"),
        ("GET", "/%68ealth"), ("GET", "/HEALTH"), ("GET", "/nowhere"), ("GET", "/health/../v1/models"),
        ("GET", "/health%2f..%2fv1%2fmodels"), ("GET", "/health;/v1/models"), ("GET", "/v1/models?/health"),
        ("HEAD", "/metrics"), ("GET", "/openapi.json"), ("GET", "/v1/mtplx/settings"), ("PUT", "/v1/mtplx/settings"),
    ],
)  # fmt: skip
def test_no_other_way_of_writing_a_path_gets_past_the_key(keyed: Keyed, method: str, path: str) -> None:
    client = keyed(KEY)
    with dial(client) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert status(ending(sock)) == 401


def test_probes_say_nothing_that_a_key_would_protect(keyed: Keyed) -> None:
    client = keyed(KEY)
    for path in ("/", "/health", "/ready", "/health?x=1"):
        response = client.get(path)
        assert response.status_code == 200
        assert "demo-13m" not in response.text
        assert client.head(path).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [bearer(KEY), {"Authorization": f"bearer  {KEY}"}, {"x-api-key": KEY}, {"X-API-Key": KEY, **bearer("unused")},
     {"x-api-key": "unused", **bearer(KEY)}],
)  # fmt: skip
def test_a_key_is_taken_in_either_header(keyed: Keyed, headers: dict[str, str]) -> None:
    response = keyed(KEY, OTHER).post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}, headers=headers
    )
    assert response.status_code == 200


def refusals() -> Iterator[dict[str, str]]:
    yield {}
    for wrong in (KEY[:-1], KEY[1:], KEY + "x", KEY.upper(), KEY[::-1], "x", "x" * 10_000, KEY + " " + KEY):
        yield {"x-api-key": wrong}
        yield bearer(wrong)
    yield {"x-api-key": ""}
    yield {"Authorization": "Bearer"}
    yield {"Authorization": KEY}
    yield {"Authorization": f"Basic {KEY}"}
    yield {"Authorization": f"Bearer{KEY}"}
    yield {"api-key": KEY}
    yield {"Cookie": f"key={KEY}"}


def test_wrong_keys_of_any_kind_get_one_answer(keyed: Keyed, scripted: ScriptedEngine) -> None:
    client = keyed(KEY, OTHER)
    answers = set()
    for headers in refusals():
        response = client.get("/v1/models", headers=headers)
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["code"]) == (
            401, "authentication_error", "invalid_api_key",
        )  # fmt: skip
        assert response.headers["www-authenticate"] == "Bearer"
        answers.add((error["message"], tuple(sorted(response.headers))))
    assert len(answers) == 2, "one for a wrong key and one for none"
    assert client.get(f"/v1/models?key={KEY}").status_code == 401


def test_each_given_key_is_compared_with_each_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("server.keys.hmac.compare_digest", compare)
    keys = Keys([KEY, OTHER])
    for given in (KEY.encode(), OTHER.encode(), b"", b"x" * 10_000):
        keys.caller([given])
    assert lengths == [(32, 32)] * 8


def test_anthropic_clients_get_their_envelope(keyed: Keyed) -> None:
    client = keyed(KEY)
    for path, headers in (("/v1/messages", {}), ("/v1/models", {"anthropic-version": "2023-06-01"})):
        response = client.request("POST" if path == "/v1/messages" else "GET", path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.json()["request_id"] == response.headers["request-id"]


def test_nothing_of_a_body_is_waited_for(keyed: Keyed) -> None:
    with dial(keyed(KEY)) as sock:
        sock.sendall(ASK + b"Content-Length: 1000000\r\n\r\n")
        assert status(one_answer(sock)) == 401


def test_a_foreign_page_is_not_told_whether_its_key_is_right(keyed: Keyed) -> None:
    client = keyed(KEY)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert {client.get("/v1/models", headers={**headers, **given}).status_code for given in ({}, bearer(KEY))} == {
            403
        }


def test_prompts_of_several_keys_share_no_prefix_and_those_of_one_do(keyed: Keyed, scripted: ScriptedEngine) -> None:
    both = keyed(KEY, OTHER)
    for key in (KEY, OTHER, KEY):
        both.headers.update(bearer(key))
        assert ask(both).status_code == 200
    scopes = [row.request.cache_scope for row in scripted.rows]
    assert scopes[0] == scopes[2] != scopes[1]
    assert "" not in scopes
    one = keyed(KEY)
    one.headers.update(bearer(KEY))
    assert ask(one).status_code == 200
    assert scripted.rows[-1].request.cache_scope == "", "nobody is there to be kept apart from"


def test_one_key_can_not_take_all_places(keyed: Keyed, scripted: ScriptedEngine) -> None:
    scripted.script = ScriptedRow.wait
    client = keyed(KEY, OTHER, rows_per_key=2)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2}
    with client.stream("POST", "/v1/chat/completions", json=body, headers=bearer(KEY)) as first:
        assert first.status_code == 200
        refused = client.post("/v1/chat/completions", json=body, headers=bearer(KEY))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        with client.stream("POST", "/v1/chat/completions", json=body, headers=bearer(OTHER)) as other:
            assert other.status_code == 200
    until(lambda: all(row.finished.is_set() for row in scripted.rows))
    with client.stream("POST", "/v1/chat/completions", json=body, headers=bearer(KEY)) as again:
        assert again.status_code == 200


def test_the_log_names_a_key_by_six_digits_of_its_digest_and_never_shows_one(
    keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "server"]

    client = keyed(KEY, OTHER)
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "server"):
        client.get("/v1/models", headers=bearer(KEY))
        client.get("/v1/models", headers=bearer(KEY + "wrong"))
        assert ask(client).status_code == 401
        until(lambda: len(said()) == 3)  # a line is written behind its answer, and only while this level holds
    label = Keys([KEY]).caller([KEY.encode()])
    assert label is not None
    assert re.fullmatch("[0-9a-f]{6}", label.label)
    lines = said()
    assert lines[0].endswith(f"key {label.label}")
    assert len(lines) == 3
    assert "key " not in lines[1]
    assert "0123456789" not in caplog.text
