"""The command line: what it costs to ask for help, what each failure says, and the codes that a shell sees."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtplx_tui import paths
from mtplx_tui.cli import run

COMMANDS = [
    [],
    ["ask"],
    ["serve"],
    ["verify"],
    ["tune"],
    ["inspect"],
    ["doctor"],
    ["bench"],
    ["bench", "speed"],
    ["bench", "ui"],
]


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, Any]:
    """The exit code, the message on standard error, and with --json the error on standard output."""
    code = run(arguments)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.err, json.loads(printed.out)["error"] if printed.out else None


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "mtplx-tui")
def test_every_command_explains_itself_and_its_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert " ".join(["mtplx-tui", *command]) in text
    assert "Exit codes: 0 done" in text
    assert ("--json" in text) == (command not in ([], ["bench"]))


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from mtplx_tui.cli import run
run(["--help"])
print(sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[1].split())))
"""
    heavy = "mlx mlx_lm transformers textual fastapi uvicorn starlette httpx huggingface_hub pydantic rich numpy"
    done = subprocess.run([sys.executable, "-c", code, heavy], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message", "param"),
    [
        (["ask", ""], "The prompt is empty", None),
        (["ask", " \n"], "The prompt is empty", None),
        (["ask", "\udcff"], "not valid UTF-8", None),
        (["ask", "hi", "--system", "\udcff"], "--system text is not valid UTF-8", None),
        (["ask", "hi", "--depth", "9"], "--depth is '9'", None),
        (["ask", "hi", "--depth", "two"], "--depth is 'two'", None),
        (["ask", "hi", "--depth", "2", "--mode", "ar"], "--mode ar makes none", None),
        (["ask", "hi", "--mode", "fast"], "--mode is 'fast': 'fast' is not one of", "mode"),
        (["ask", "hi", "--temperature", "-1"], "temperature is -1.0", "temperature"),
        (["ask", "hi", "--temperature", "nan"], "temperature is nan", "temperature"),
        (["ask", "hi", "--top-p", "0"], "top_p is 0.0", "top_p"),
        (["ask", "hi", "--top-k", "-3"], "top_k is -3", "top_k"),
        (["ask", "hi", "--min-p", "1.5"], "min_p is 1.5", "min_p"),
        (["ask", "hi", "--max-tokens", "0"], "max_tokens is 0", "max_tokens"),
        (["ask", "hi", "--max-tokens", "many"], "--max-tokens is 'many'", "max_tokens"),
        (["ask", "hi", "--stop", ""], "stop string", "stop"),
        (["ask", "hi", "--bogus"], "No such option: --bogus", None),
        (["ask"], "Missing argument", "prompt"),
        (["serve", "--port", "70000"], "--port is '70000'", "port"),
        (["nonsense"], "nonsense", None),
        (["--depth", "3", "ask", "hi"], "Options before ask belong to the screen", None),
    ],
    ids=lambda value: repr(" ".join(value)) if isinstance(value, list) else "",
)
def test_a_command_line_that_can_not_be_used_is_refused_before_a_model_is_loaded(
    arguments: list[str], message: str, param: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, nothing = fails(capsys, *arguments)
    assert code == 2
    assert message in text
    assert nothing is None
    code, again, error = fails(capsys, *arguments, "--json")
    assert (code, again) == (2, text)
    assert error["message"] == text.rstrip("\n")
    assert error["param"] == param
    assert error["type"].islower()


def test_a_model_that_is_not_here_is_the_models_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = fails(capsys, "ask", "hi", "--model", str(tmp_path / "nowhere"), "--json")
    assert code == 3
    assert "nowhere" in text
    assert (error["type"], error["message"]) == ("model_not_found", text.rstrip("\n"))
    code, text, error = fails(capsys, "inspect", str(tmp_path / "nowhere"), "--json")
    assert (code, error["type"]) == (3, "model_not_found")


def test_json_after_two_dashes_is_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = fails(capsys, "ask", "--bogus", "--", "--json")
    assert code == 2
    assert error is None
    assert "--bogus" in text


def test_without_a_terminal_the_screen_names_the_way_on(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mtplx_tui"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == 'The screen needs a terminal. Without one, use: mtplx-tui ask "your question".\n'


def test_an_error_of_the_programs_own_is_one_line_and_its_details_are_in_the_log() -> None:
    code = """
import sys
import engine.models.inspect
from mtplx_tui.cli import run
def broken(name): raise ZeroDivisionError(f"a bug met {name}")
engine.models.inspect.inspect_model = broken
sys.exit(run(["inspect", "x", "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError: a bug met x" in done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "zero_division"
    assert "Traceback" in paths.log_file().read_text()


def test_a_full_disk_under_the_answer_is_said() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "mtplx_tui", "inspect", "--json"]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "No space left on device.\n"


def test_doctor_finds_the_good_and_the_bad(tmp_path: Path) -> None:
    def examine(home: Path) -> tuple[int, dict[str, Any]]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")} | {"HOME": str(home)}
        done = subprocess.run(
            [sys.executable, "-m", "mtplx_tui", "doctor", "--json"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        report = json.loads(done.stdout)
        assert report["ok"] == (done.returncode == 0)
        return done.returncode, {finding["name"]: finding for finding in report["findings"]}

    code, good = examine(tmp_path)
    assert code == 0
    assert {"system", "versions", "device", "model", "chats", "terminal", "port 8000"} <= set(good)
    assert good["model"]["level"] == "ok"
    assert list(tmp_path.iterdir()) == [], "doctor changes nothing"

    (tmp_path / "file").write_text("where a folder should be")
    code, bad = examine(tmp_path / "file")
    assert code == 1
    assert bad["chats"]["level"] == "problem"
    assert "no chat can be kept" in bad["chats"]["text"]
    assert bad["chats"]["fix"]
