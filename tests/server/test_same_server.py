"""Which server that runs here is as good as one of one's own: by what both were asked for, whatever said it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_helpers import KEY
from scripted_engine import ScriptedEngine

from engine.config import EngineConfig
from engine.models.locate import ASSETS
from engine.profiles import PROFILES
from mtplx_tui.running import Front, announced, same, servers

DEMO = ASSETS / "demo-13m"
USUAL = Front()


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("MTPLX_API_KEY", raising=False)


def runs(engine: ScriptedEngine, url: str, config: EngineConfig, front: Front = USUAL, keyed: bool = False) -> Any:
    """While inside, the server at `url` is announced as one that was started so."""
    model = replace(engine.model, path=str(DEMO), mode=config.mode)
    return announced(url, "serve", model, keyed, config, front)


@pytest.mark.parametrize(
    ("started", "asked"),
    [
        ({}, {}),
        ({}, {"model": "demo-13m"}),
        ({"model": str(DEMO)}, {}),
        ({"profile": PROFILES["sustained"], "kv_bits": 8}, {"profile": PROFILES["sustained"], "kv_bits": 8}),
        ({"depth": 2, "memory_bytes": 8 * 10**9}, {"depth": 2, "memory_bytes": 8 * 10**9}),
        ({"mode": "ar"}, {"mode": "ar", "depth": 0}),
    ],
    ids=str,
)
def test_a_server_of_the_same_is_taken(
    shared_server: str, scripted: ScriptedEngine, started: dict[str, Any], asked: dict[str, Any]
) -> None:
    assert same(EngineConfig(**asked), None) is None
    with runs(scripted, shared_server, EngineConfig(**started)):
        found = same(EngineConfig(**asked), None, USUAL)
        assert found is not None
        assert (found.url, found.pid, found.model) == (shared_server, os.getpid(), "demo-13m")


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "ar"},
        {"depth": 2},
        {"depth": 0},
        {"profile": PROFILES["exact"]},
        {"kv_bits": 4},
        {"memory_bytes": 1 << 33},
        {"model": "no-such-model"},
    ],
    ids=str,
)
def test_a_server_of_another_kind_is_not(shared_server: str, scripted: ScriptedEngine, asked: dict[str, Any]) -> None:
    with runs(scripted, shared_server, EngineConfig()):
        assert same(EngineConfig(**asked), None) is None


@pytest.mark.parametrize("started", [{"mode": "ar"}, {"depth": 2}, {"profile": PROFILES["exact"]}, {"kv_bits": 4}])
def test_nor_is_one_that_was_asked_for_more_than_the_usual(
    shared_server: str, scripted: ScriptedEngine, started: dict[str, Any]
) -> None:
    with runs(scripted, shared_server, EngineConfig(**started)):
        assert same(EngineConfig(), None) is None


def test_another_model_of_the_same_name_is_not(shared_server: str, scripted: ScriptedEngine) -> None:
    model = replace(scripted.model, path="/elsewhere/demo-13m")
    with announced(shared_server, "serve", model, False, EngineConfig(), Front()):
        assert len(servers()) == 1
        assert same(EngineConfig(), None) is None


@pytest.mark.parametrize(
    "front",
    [
        Front(host="127.0.0.2"),
        Front(port=9000),
        Front(names=("desk.example",)),
        Front(embedding_model="/models/minilm"),
        Front(rerank_model="/models/minilm"),
    ],
    ids=str,
)
def test_where_it_listens_and_what_else_it_answers_counts_for_a_server_alone(
    shared_server: str, scripted: ScriptedEngine, front: Front
) -> None:
    with runs(scripted, shared_server, EngineConfig(), front):
        assert same(EngineConfig(), None, USUAL) is None
        for wanted in (front, None):
            found = same(EngineConfig(), None, wanted)
            assert found is not None
            assert found.front == front


def test_one_that_takes_no_requests_yet_is_not(shared_server: str, scripted: ScriptedEngine) -> None:
    with runs(scripted, shared_server, EngineConfig()):
        scripted.load()
        assert len(servers()) == 1
        assert same(EngineConfig(), None) is None


def test_one_that_asks_for_a_key_is_taken_by_whoever_has_it(
    keyed_server: str, scripted: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key_file(name: str, text: str, mode: int = 0o600) -> Path:
        file = tmp_path / name
        file.write_text(text)
        file.chmod(mode)
        return file

    with runs(scripted, keyed_server, EngineConfig(), keyed=True):
        refused = (None, key_file("other", "another-key-of-letters"), key_file("open", KEY, 0o644), tmp_path / "none")
        for file in refused:
            assert same(EngineConfig(), file) is None
        assert same(EngineConfig(), key_file("own", KEY), USUAL) is not None
        monkeypatch.setenv("MTPLX_API_KEY", KEY)
        assert same(EngineConfig(), None, USUAL) is not None


def test_a_server_that_shall_ask_for_a_key_is_not_one_that_asks_for_none(
    shared_server: str, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTPLX_API_KEY", KEY)
    with runs(scripted, shared_server, EngineConfig()):
        assert same(EngineConfig(), None, USUAL) is None
        assert same(EngineConfig(), None) is not None
