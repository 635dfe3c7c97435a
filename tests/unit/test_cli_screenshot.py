"""`mtplx-tui screenshot`: what it refuses, and pictures of a real run."""

import json
from pathlib import Path

import pytest

from mtplx_tui.cli import run
from mtplx_tui.commands import complete


def test_what_can_not_be_drawn_is_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        ([], "Name rooms or give --all, and not both. There are: chat, dashboard,"),
        (["chat", "--all"], "Name rooms or give --all, and not both"),
        (["kitchen"], "There is no room 'kitchen'; there are: chat,"),
        (["chat", "--size", "big"], "--size is 'big'; give columns and rows from 80x24"),
        (["chat", "--size", "79x24"], "--size is '79x24'"),
        (["chat", "--size", "80x9999"], "--size is '80x9999'"),
    ):
        assert run(["screenshot", *arguments, "--out", str(tmp_path / "new")]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_every_room_that_measures_nothing_is_drawn_from_a_real_run_and_what_is_kept_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mtplx_tui.pictures import SCENES

    assert list(SCENES) == complete.room_names()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    rooms = ["chat", "dashboard", "models", "settings", "help"]
    assert run(["screenshot", *rooms, "--size", "80x24", "--out", str(tmp_path), "--json"]) == 0
    files = [Path(file) for file in json.loads(capsys.readouterr().out)["files"]]
    assert [file.name for file in files] == [f"{room}-80x24.svg" for room in rooms]
    told = {file.name.partition("-")[0]: file.read_text().replace("&#160;", " ") for file in files}
    for room, words in {"chat": "47 + 85 = 132", "dashboard": "api:", "models": "smollm2-135m", "help": "Keys"}.items():
        assert words in told[room]
    assert not (tmp_path / "data").exists()
