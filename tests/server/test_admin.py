"""What the server says of itself and of its cache, and that all of it stands behind the guards."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from http_helpers import KEY, Connect, ask, until
from scripted_engine import ScriptedEngine

from engine.caches.blobs import Blobs, Entry
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from server.run import ServerThread

LONG = "Mia the cat took 12 things and a lamp to Ben. " * 8


def test_the_server_tells_who_it_is(connect: Connect, scripted: ScriptedEngine) -> None:
    before = time.time()
    client = connect()
    told = client.get("/v1/mtplx/server").json()
    assert told["pid"] == os.getpid()
    assert told["version"].count(".") == 2
    assert told["address"] == str(client.base_url).rstrip("/")
    assert before <= told["started"] <= time.time()
    assert 0 <= told["uptime_s"] <= time.time() - before
    assert (told["state"], told["keyed"], told["model"]["name"]) == ("ready", False, "demo-13m")
    scripted.fail("it broke")
    told = client.get("/v1/mtplx/server").json()
    assert (told["state"], told["model"]) == ("failed", None)


ROUTES = [
    ("GET", "/metrics"), ("GET", "/v1/mtplx/server"), ("GET", "/v1/mtplx/requests"), ("GET", "/v1/mtplx/requests/x"),
    ("POST", "/v1/mtplx/requests/x/cancel"), ("GET", "/v1/mtplx/events"), ("GET", "/v1/mtplx/settings"),
    ("PATCH", "/v1/mtplx/settings"), ("POST", "/v1/mtplx/settings"), ("GET", "/v1/mtplx/cache"),
    ("DELETE", "/v1/mtplx/cache"),
]  # fmt: skip


def test_every_route_asks_for_the_key_and_refuses_other_pages_and_names(
    keyed_server: str, scripted: ScriptedEngine
) -> None:
    scripted.keep(3)
    key = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=keyed_server, trust_env=False, timeout=20) as client:
        for method, path in ROUTES:
            assert client.request(method, path).status_code == 401
            foreign = {**key, "origin": "https://evil.example"}
            assert client.request(method, path, headers=foreign).status_code == 403
            rebound = {**key, "host": "evil.example"}
            assert client.request(method, path, headers=rebound).status_code == 403
        assert scripted.cache is not None
        assert scripted.cache.stretches == 3, "nothing was cleared"
        assert client.get("/v1/mtplx/server", headers=key).json()["keyed"] is True
        assert client.get("/metrics", headers=key).status_code == 200


def test_the_cache_tells_what_it_holds_and_how_it_was_used(
    connect: Connect, scripted: ScriptedEngine, tmp_path: Path
) -> None:
    client = connect()
    assert client.get("/v1/mtplx/cache").json()["memory"] is None, "nothing is known of it yet"
    blobs = Blobs(tmp_path, 1 << 20)
    for key, model in (("aa", "demo-13m"), ("bb", "demo-13m"), ("cc", "other")):
        blobs.write(Entry(key, "root", "root", model, "build", 0, 64), [b"x" * 100])
    blobs.close()
    scripted.keep(3, evicted=1, folder=str(tmp_path))
    scripted.script = lambda row: (row.prefill(3, cached=2, miss="prompts part at token 2"), row.finish())
    ask(client)
    told = client.get("/v1/mtplx/cache").json()
    assert told["memory"] == {
        "stretches": 3, "tokens": 300, "bytes": 300_000, "limit_bytes": 1 << 30, "evicted": 1,
    }  # fmt: skip
    assert told["disk"] == {
        "folder": str(tmp_path), "entries": 3, "bytes": 300, "error": None,
        "models": {"demo-13m": {"entries": 2, "bytes": 200}, "other": {"entries": 1, "bytes": 100}},
    }  # fmt: skip
    assert told["requests"] == {"hit": 1}
    assert told["tokens"] == {"looked_up": len(scripted.rows[0].request.prompt) - 1, "cached": 2}
    assert told["misses"] == {"prompts part at token N": 1}


def test_a_folder_that_can_not_be_read_is_said(connect: Connect, scripted: ScriptedEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    scripted.keep(1, folder=str(tmp_path / "file"))
    disk = connect().get("/v1/mtplx/cache").json()["disk"]
    assert disk["entries"] is None
    assert disk["error"]


def test_clearing_answers_with_what_goes(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect()
    scripted.keep(3)
    response = client.delete("/v1/mtplx/cache")
    assert (response.status_code, response.json()["memory"]["stretches"]) == (202, 3)
    assert client.get("/v1/mtplx/cache").json()["memory"]["stretches"] == 0


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a real engine that keeps prefixes in memory and on disk."""
    engine = ThreadEngine(EngineConfig(cache_folder=tmp_path))
    engine.wait_ready(120)
    server = ServerThread(engine, port=0)
    server.start()
    with httpx.Client(base_url=server.address or "", trust_env=False, timeout=60) as client:
        yield client
    assert server.stop(1.0)
    assert engine.close(30)


def test_the_real_engines_cache_is_told_and_cleared(kept: httpx.Client) -> None:
    def cached() -> int:
        usage = ask(kept, LONG + "Who took it?", max_tokens=2).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    def entries() -> tuple[int, int]:
        told = kept.get("/v1/mtplx/cache").json()
        return told["memory"]["stretches"], told["disk"]["entries"]

    assert (cached(), cached() > 32) == (0, True)
    until(lambda: min(entries()) > 0)
    assert kept.get("/v1/mtplx/cache").json()["requests"] == {"hit": 1, "miss": 1}
    assert kept.delete("/v1/mtplx/cache").status_code == 202
    until(lambda: entries() == (0, 0))
    assert (cached(), cached() > 32) == (0, True), "and it is kept anew"
