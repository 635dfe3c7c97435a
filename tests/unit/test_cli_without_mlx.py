"""On a machine without MLX: all that needs no model works, and what needs one says what is missing."""

import json
import subprocess
import sys
from typing import Any

import pytest

CODE = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder

class WithoutMLX:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in ("mlx", "mlx_lm") else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [WithoutMLX if finder is PathFinder else finder for finder in sys.meta_path]
from mtplx_tui.cli import run
for line in sys.argv[1:]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = run(line.split())
        except SystemExit as end:
            code = end.code
    print(json.dumps([line, code, out.getvalue(), error.getvalue()]))
import mtplx_tui.app, mtplx_tui.commands.screen
from mtplx_tui.remote import openai, ours
from mtplx_tui.remote import settings as remote_settings
from mtplx_tui.screens import bench, dashboard, models, settings, tune
print(json.dumps(["screens", 0, "", ""]))
"""
WORK = {
    "--help": 0, "models --json": 0, "pull org --json": 2, "remove a/b --yes --json": 3, "inspect --json": 0,
    "sessions list --json": 0, "settings --json": 0, "settings get depth --json": 0, "cache list --json": 0,
    "cache verify --json": 0, "connect codex --json": 0, "status --json": 1, "stop --json": 3, "screens": 0,
}  # fmt: skip
NEED = ("ask hi --json", "serve --json", "tune --json", "bench speed --json", "bench step --json", "verify --json")


@pytest.fixture(scope="module")
def ran() -> dict[str, tuple[int, str, str]]:
    """Exit code, standard output and error of each command line."""
    lines = [line for line in (*WORK, *NEED, "doctor --json") if line != "screens"]
    done = subprocess.run([sys.executable, "-c", CODE, *lines], capture_output=True, text=True, check=True)
    return {line: (code, out, error) for line, code, out, error in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(("line", "code"), WORK.items())
def test_what_needs_no_model_works(ran: dict[str, Any], line: str, code: int) -> None:
    got, out, error = ran[line]
    assert got == code, error
    assert "mlx" not in error.lower().replace("mtplx", "")
    if "--json" in line:
        json.loads(out)


@pytest.mark.parametrize("line", NEED)
def test_what_needs_a_model_says_what_is_missing_and_the_way_on(ran: dict[str, Any], line: str) -> None:
    code, out, error = ran[line]
    assert code == 3
    assert "MLX, which runs the models, is not installed here" in error
    assert "uv sync" in error
    assert json.loads(out)["error"]["type"] == "mlx_missing"


def test_doctor_finds_it(ran: dict[str, Any]) -> None:
    code, out, _ = ran["doctor --json"]
    assert code == 1
    (found,) = [finding for finding in json.loads(out)["findings"] if finding["name"] == "mlx"]
    assert (found["level"], found["text"], found["fix"]) == (
        "problem", "MLX is not installed", "install mtplx-tui again: uv sync",
    )  # fmt: skip
