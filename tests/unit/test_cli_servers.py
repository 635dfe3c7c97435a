"""Servers that run here: announced, found, not loaded twice, stopped; and what `--connect` refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.handle import ModelInfo
from engine.models.locate import ASSETS
from engine.request import Sampling
from mtplx_tui import exit_codes, paths
from mtplx_tui.cli import run
from mtplx_tui.commands import tui as tui_command
from mtplx_tui.running import Front, announced, servers
from mtplx_tui.saved_settings import save

MODEL = ModelInfo(
    name="demo-13m", path=str(ASSETS / "demo-13m"), family="f", context=2048, vocab_size=9, mode="mtp", depth=None,
    head="mtp", quantization=None, dtype="float32", device="cpu", weight_bytes=1, sampling=Sampling(), kv="float32",
)  # fmt: skip


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """The exit code, the JSON on standard output, and standard error."""
    code = run([*arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else None, printed.err


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MTPLX_API_KEY", raising=False)


@pytest.fixture
def served(no_servers: None) -> Iterator[dict[str, Any]]:
    """A real `serve` with kept settings; what it printed, and its process."""
    kept = {"model": "demo-13m", "profile": "sustained", "memory": "8GB", "temperature": 0.5, "depth": 2}
    save(paths.settings_file(), kept)
    command = [sys.executable, "-P", "-m", "mtplx_tui", "serve", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("}"):
                break
        yield json.loads(text) | {"process": process}
        process.kill()


def link_of_screen(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """Where the screen that these arguments start is to find its engine; None is in itself."""
    started: list[dict[str, Any]] = []

    def guarded(argv: list[str], log: Path) -> int:
        started.append(json.loads(argv[-1]))
        return exit_codes.OK

    with monkeypatch.context() as patch:
        patch.setattr(tui_command.guard, "run", guarded)
        for stream in ("stdin", "stdout"):
            patch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
        assert run([*arguments]) == exit_codes.OK
    return started[0]["link"]


def test_one_server_is_found_by_all_and_loaded_once(
    served: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, url = served["process"], served["url"]
    code, told, _ = said(capsys, "status")
    assert code == exit_codes.OK
    (server,) = told["servers"]
    assert (server["url"], server["pid"], server["kind"]) == (url, process.pid, "serve")
    assert (server["model"], server["mode"], server["health"], server["keyed"]) == ("demo-13m", "mtp", "ok", False)

    code, told, err = said(capsys, "serve")
    assert (code, told) == (exit_codes.OK, {"url": url, "model": "demo-13m", "mode": "mtp"})
    assert "served already" in err

    here = {"url": url, "kind": "ours", "key_file": None, "attached": True}
    assert link_of_screen(monkeypatch) == here
    assert link_of_screen(monkeypatch, "--memory", "8 GB", "--model", MODEL.path) == here
    for other in (["--profile", "turbo"], ["--depth", "3"], ["--mode", "ar"], ["--model", "no-such-model"]):
        assert link_of_screen(monkeypatch, *other) is None, other

    code, told, _ = said(capsys, "stop")
    assert code == exit_codes.OK
    assert told["stopped"]["url"] == url
    assert process.wait(20) == 0
    assert said(capsys, "status")[:2] == (exit_codes.NOT_PASSED, {"servers": []})
    assert link_of_screen(monkeypatch) is None


def test_with_none_status_says_so_and_stop_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == exit_codes.NOT_PASSED
    assert "No server runs here" in capsys.readouterr().out
    code, told, _ = said(capsys, "stop")
    assert (code, told["error"]["message"]) == (exit_codes.FAILED, "No server runs here.")


def test_what_a_kill_left_is_taken_away() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    folder = paths.servers_folder()
    with announced("http://127.0.0.1:1", "serve", MODEL, False, EngineConfig(), Front()):
        (own,) = folder.glob("*.json")
        record = json.loads(own.read_text())
        (folder / "1.json").write_text(json.dumps(record | {"pid": gone.pid}))
        (folder / "2.json").write_text("no json")
        (folder / "3.json").write_text("{}")
        (folder / "4.json").write_text("[]")
        assert record["pid"] == os.getpid()
        assert servers() == []  # nothing of ours answers at that address either
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--connect", "http://127.0.0.1:1"], exit_codes.BAD_INPUT, "needs a terminal"),
        (["--connect", "http://127.0.0.1:1", "--depth", "2"], exit_codes.BAD_INPUT, "leave the options"),
        (["--key-file", "k"], exit_codes.BAD_INPUT, "--key-file is for --connect"),
        (["--connect", "http://127.0.0.1:1", "serve"], exit_codes.BAD_INPUT, "Options before serve"),
    ],
)
def test_connect_refuses_what_can_not_be(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run(arguments) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("http://127.0.0.1:1", exit_codes.FAILED, "no server answers"),
        ("not a url", exit_codes.BAD_INPUT, "no address of a server"),
    ],
)
def test_connect_says_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, code: int, message: str
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert run(["--connect", url]) == code
    assert message in capsys.readouterr().err


def test_a_key_file_of_others_or_without_a_key_is_refused(tmp_path: Path) -> None:
    from mtplx_tui.options import UsageError
    from mtplx_tui.remote.http import read_key

    file = tmp_path / "key"
    file.write_text("# mine\n\nsecret-key \n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_key(file)
    file.chmod(0o600)
    assert read_key(file) == "secret-key"
    file.write_text("# mine\n")
    with pytest.raises(UsageError, match="holds no key"):
        read_key(file)
    with pytest.raises(UsageError, match="can not be read"):
        read_key(tmp_path / "missing")
    assert read_key(None, {"MTPLX_API_KEY": "k"}) == "k"
    assert read_key(None, {}) is None
