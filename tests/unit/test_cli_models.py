"""`models`, `pull` and `remove`: what they print, ask and refuse."""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from hub_stand_in import COMMIT, HubStandIn, served

from mtplx_tui import exit_codes
from mtplx_tui.cli import run

REPO = "maker/model-4bit"
SIZE = 2_000_000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A hub with one model, and an empty cache, for this process and those that it starts."""
    cache = str(tmp_path / "hub")
    with served() as hub:
        weights = random.Random(1).randbytes(SIZE)
        hub.repos[REPO] = {"config.json": b'{"model_type": "llama"}', "model.safetensors": weights}
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", cache)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", cache)
        yield hub


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["models", "pull", "remove"])
def test_each_explains_itself_and_its_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == exit_codes.OK
    assert "Exit codes" in capsys.readouterr().out


def test_models_lists_what_is_here_and_the_catalog(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = said(capsys, "models", "--context", "2000")
    assert code == exit_codes.OK
    first = result["models"][0]
    assert (first["name"], first["where"], first["fits"], first["fit_context"]) == ("demo-13m", "bundled", "yes", 2000)
    assert {row["where"] for row in result["models"]} == {"bundled", "catalog"}
    assert run(["models"]) == exit_codes.OK
    text = capsys.readouterr().out
    assert "demo-13m" in text
    assert "advised" in text
    assert run(["models", "--context", "0"]) == exit_codes.BAD_INPUT


def test_a_model_comes_is_listed_and_goes(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = said(capsys, "pull", REPO)
    assert (code, result["commit"], result["bytes"]) == (exit_codes.OK, COMMIT, SIZE + 23)
    assert (Path(result["path"]) / "model.safetensors").stat().st_size == SIZE
    _, listed = said(capsys, "models")
    assert REPO in [row["name"] for row in listed["models"] if row["where"] == "cache"]
    assert run(["remove", REPO]) == exit_codes.BAD_INPUT
    assert "--yes" in capsys.readouterr().err
    code, result = said(capsys, "remove", REPO, "--yes")
    assert (code, result["removed"]) == (exit_codes.OK, REPO)
    assert result["bytes"] >= SIZE
    code, result = said(capsys, "remove", REPO, "--yes")
    assert (code, result["error"]["type"]) == (exit_codes.FAILED, "hub")


@pytest.mark.parametrize("name", ["demo-13m", "smollm2-135m", ".", "/", "~", "a/b/c", "../x", "org"])
@pytest.mark.parametrize("command", [["pull"], ["remove", "--yes"]])
def test_only_repositories_come_and_go(
    hub: HubStandIn, command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = said(capsys, *command, name)
    assert (code, result["error"]["type"]) == (exit_codes.BAD_INPUT, "usage")
    assert name in result["error"]["message"]
    assert hub.asked == []


def test_what_is_unsafe_is_refused_with_its_reason(hub: HubStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repos["maker/pickle"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    code, result = said(capsys, "pull", "maker/pickle")
    assert (code, result["error"]["type"]) == (exit_codes.FAILED, "unsafe_model")
    assert "pickle" in result["error"]["message"]


def terminal(*arguments: str) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        sys.executable, ["-m", "mtplx_tui", *arguments], encoding="utf-8", timeout=60, env=dict(os.environ),
        dimensions=(24, 200),
    )  # fmt: skip


def test_at_a_terminal_it_shows_progress_stops_at_ctrl_c_and_goes_on(hub: HubStandIn) -> None:
    hub.hold_after = 1_000_000
    child = terminal("pull", REPO)
    assert hub.holding.wait(60)
    child.expect(r"kB of 2\.0 MB +\d+%")  # of the first piece, which is told at once; the others may come too fast
    child.sendintr()
    child.expect("what came of maker/model-4bit is kept")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == exit_codes.INTERRUPTED
    hub.hold_after = None
    hub.go.set()
    child = terminal("pull", REPO)
    child.expect("every checksum right")
    child.expect(pexpect.EOF)
    assert [start > 0 for name, start in hub.asked if name == "model.safetensors"] == [False, True]


def test_with_json_the_progress_at_a_terminal_is_json_too(hub: HubStandIn) -> None:
    child = terminal("pull", REPO, "--json")
    child.expect(pexpect.EOF)
    assert child.before is not None
    lines = [json.loads(line) for line in child.before.splitlines() if line.startswith('{"stage"')]
    assert lines[-1]["done"] == lines[-1]["total"] == SIZE + 23
    assert {"file", "file_done", "file_size", "rate", "eta"} <= lines[-1].keys()


def test_a_question_at_a_terminal_is_asked_before_deleting(hub: HubStandIn) -> None:
    assert run(["pull", REPO]) == exit_codes.OK
    child = terminal("remove", REPO)
    child.expect("Delete maker/model-4bit")
    child.sendline("n")
    child.expect("nothing was removed")
    child.expect(pexpect.EOF)
    child = terminal("remove", REPO)
    child.expect("Delete maker/model-4bit")
    child.sendline("y")
    child.expect("removed maker/model-4bit, 2.0 MB")
    child.expect(pexpect.EOF)
