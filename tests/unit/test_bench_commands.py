"""`mtplx-tui bench`: what it refuses, before anything is loaded, and what it leaves on disk."""

import json
from pathlib import Path

import pytest

from engine.bench.random_models import write
from engine.bench.shapes import DEMO_VOCABULARY, Shape
from mtplx_tui.cli import run

TINY = Shape(4, 64, 64, 2, 1, 32, 2, 2, 32, vocabulary=DEMO_VOCABULARY, context=320, tied=True)


@pytest.mark.parametrize("command", ["speed", "step", "load", "context", "suite"])
def test_every_benchmark_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"mtplx-tui bench {command}" in text
    assert all(option in text for option in ("--json", "--save", "--model", "--random"))
    assert ("--accept" in text) == (command in ("speed", "step", "context"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed", "--random", "70b"], "no random model '70b'; there are: tiny-24"),
        (["step", "--random", "tiny-24", "--model", "demo-13m"], "--model and --random"),
        (["context", "--lengths", "512,many"], "--lengths is '512,many'"),
        (["context", "--lengths", "8"], "at least 64"),
        (["load", "--clients", "0"], "--clients is '0'"),
        (["load", "--clients", ""], "--clients is ''"),
        (["load", "--clients", "500", "--requests", "9"], "different prompts are needed"),
        (["speed", "--accept", "1.5"], "--accept is '1.5'"),
        (["speed", "--repeats", "0"], "--repeats is '0'"),
        (["step", "--steps", "1"], "--steps is '1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_can_not_be_used_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_a_folder_that_can_not_hold_results_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    assert run(["bench", "speed", "--model", str(tmp_path / "nowhere"), "--save", str(tmp_path / "file")]) == 3
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "kept"


def test_results_are_printed_as_json_and_saved_in_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "tiny", TINY)
    out = tmp_path / "results"
    arguments = ["--model", str(tmp_path / "tiny"), "--json", "--save", str(out)]
    assert run(["bench", "context", "--lengths", "64", "--repeats", "1", *arguments]) == 0
    said = capsys.readouterr()
    printed = json.loads(said.out)
    assert printed["costs"][0]["tokens"] == 64
    saved = sorted(file.suffix for file in out.iterdir())
    assert saved == [".csv", ".csv", ".json", ".md"]
    assert json.loads(next(out.glob("*.json")).read_text()) == printed
    assert all(str(file) in said.err for file in out.iterdir())


@pytest.mark.slow
def test_the_suite_runs_all_parts_into_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "tiny", TINY)
    out = tmp_path / "results"
    assert run(["bench", "suite", "--quick", "--model", str(tmp_path / "tiny"), "--json", "--save", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == {"model", "speed", "step", "context", "load", "receipts"}
    for part in ("speed", "step", "context", "load"):
        assert printed[part]["receipts"]["benchmark"] == part
    assert printed["speed"]["identical_text"] is True
    assert sum(cost["failed"] for cost in printed["load"]["costs"]) == 0
    markdown = next(out.glob("*.md")).read_text()
    assert all(f"## {part}: " in markdown for part in ("Speed", "Step", "Context", "Load"))
    assert len(list(out.glob("*.csv"))) == 9
