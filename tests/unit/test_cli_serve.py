"""`mtplx-tui serve`: what is refused before a model is loaded, and what a long life does not gather."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.events import Event, ReadyEvent, TokenEvent
from engine.handle import EventSink
from mtplx_tui import exit_codes
from mtplx_tui.cli import run
from mtplx_tui.commands import common
from server.keys import VARIABLE


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
