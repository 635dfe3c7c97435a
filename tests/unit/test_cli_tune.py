"""The options that choose how the engine runs, the same for every command, and `tune` with what it keeps."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from engine.config import EngineConfig
from engine.device import device_name
from engine.models.locate import locate
from engine.profiles import PROFILES, TURBO
from engine.tuned import DepthRow, Range, Tuned, Tuning
from engine.tuned_files import fingerprint, save, versions
from mtplx_tui import paths
from mtplx_tui.cli import run
from mtplx_tui.commands.tune import table
from mtplx_tui.options import EngineOptions, ProfileName, UsageError, parse_memory
from mtplx_tui.saved_tuning import with_saved_tuning

PROGRAM = [sys.executable, "-m", "mtplx_tui"]
WHY = "depth 1 makes 120 tok/s, 1.48 times plain decoding's 81"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of tunings, in a data folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = paths.tunings_folder()
    assert folder.is_relative_to(tmp_path)
    return folder


@pytest.fixture
def kept() -> Tuning:
    """A record of the bundled model, as tune would make it here."""
    rows = (
        DepthRow(0, Range(81.0, 80.0, 82.0), 0.0124, 1.0, None, (), True),
        DepthRow(1, Range(120.0, 119.0, 121.0), 0.0155, 1.86, 0.86, (0.86,), True),
        DepthRow(2, Range(130.0, 129.0, 131.0), 0.0187, 2.5, 0.75, (0.86, 0.64), False),
    )
    files = locate(None)
    return Tuning(
        files.name, fingerprint(files.path), device_name(), versions(), "turbo", None, 1_700_000_000, rows, 1, True, WHY
    )


def test_without_options_the_engine_is_the_plain_one() -> None:
    assert EngineOptions().config() == EngineConfig(timings_file=paths.timings_file())


def test_every_option_reaches_the_engine() -> None:
    config = EngineOptions("m", "mtp", "3", "exact", "8", "12GiB").config()
    expected = EngineConfig("m", "mtp", 3, PROFILES["exact"], 8, memory_bytes=12 * 2**30)
    assert config == replace(expected, timings_file=paths.timings_file())
    assert EngineOptions(kv_bits="4").config().kv_bits == 4
    assert EngineOptions(mode="ar", depth="0").config().depth == 0
    with pytest.raises(UsageError, match="--depth 2 needs drafts, and --mode ar makes none"):
        EngineOptions(mode="ar", depth="2").config()


def test_every_profile_can_be_chosen_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(get_args(ProfileName)) == set(PROFILES)
    assert EngineOptions().profile == TURBO.name
    run(["ask", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: " in text for name in PROFILES)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("12GiB", 12 * 2**30), ("1.5 GB", 1_500_000_000), ("512MiB", 2**29), ("0.001TB", 10**9)],
)
def test_a_memory_size_is_taken_with_its_unit(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "8", "8 ", "GB", "-8GB", "+8GB", "8gb", "8G", "8KB", "0GB", "0.0GiB", "1e3GB", "8GB8GB", "nanGB", "infGB",
     "8,5GB", "٨GB", "8GB\n", "0x8GB", "1_0GB", "9999999GB", " 8GB", "8  GB"],
)  # fmt: skip
def test_a_memory_size_that_is_not_one_is_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(UsageError, match="--memory is") as refused:
        parse_memory(text)
    assert repr(text) in str(refused.value)
    assert "8GB or 12GiB" in str(refused.value)


STARTERS: list[list[str]] = [[], ["ask", "x"], ["serve"], ["verify"], ["tune"]]
REFUSED: list[tuple[list[str], str]] = [
    *(([*command, "--profile", "fast"], "--profile is 'fast'") for command in STARTERS),
    *(([*command, "--kv-bits", "5"], "--kv-bits is '5'") for command in STARTERS),
    (["--memory", "lots"], "--memory is 'lots'"),
    (["serve", "--memory", "lots"], "--memory is 'lots'"),
    (["serve", "--mode", "ar", "--depth", "2"], "--mode ar makes none"),
    (["--mode", "ar", "--depth", "2"], "--mode ar makes none"),
    (["--profile", "exact", "tune"], "Options before tune belong to the screen"),
    (["tune", "--depth", "3"], "No such option: --depth"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_options_that_can_not_be_are_refused_before_a_model_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_a_kept_result_is_shown_with_the_way_to_measure_again(
    folder: Path, kept: Tuning, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder, kept)
    assert run(["tune"]) == 0
    text = capsys.readouterr().out
    assert f"{WHY} (measured on 2023-11-" in text
    assert "--retune measures again" in text
    assert run(["tune", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["best_depth"], report["saved"]) == ("demo-13m", 1, True)
    assert set(report["versions"]) == {"mlx", "mlx-lm", "mtplx-tui"}
    assert report["device"] == device_name()
    assert report["rows"][1]["tok_s"] == {"median": 120.0, "min": 119.0, "max": 121.0}
    assert {"depth", "tok_s", "tokens_per_step", "acceptance", "identical_text"} <= set(report["rows"][0])
    assert "--retune" in report["why"]


def test_the_table_names_the_winner_and_the_depth_that_said_something_else(kept: Tuning) -> None:
    lines = table(kept)
    assert lines[0] == f"demo-13m on {device_name()}, profile turbo"
    assert [line.split()[0] for line in lines if line.endswith("<")] == ["1"]
    assert [line.split()[0] for line in lines if "DIFFERENT" in line] == ["2"]
    assert lines[-1] == WHY
    assert not any(line.endswith("<") for line in table(replace(kept, best_depth=0)))


def test_the_automatic_depth_starts_from_what_is_kept_and_nothing_else_does(folder: Path, kept: Tuning) -> None:
    config = EngineConfig()
    assert with_saved_tuning(config) is config
    save(folder, kept)
    assert with_saved_tuning(config) == replace(config, tuned=Tuned(1, (0.0124, 0.0155, 0.0187), (0.86, 0.64), (2,)))
    for other in (
        EngineConfig(depth=2),
        EngineConfig(mode="ar"),
        EngineConfig(profile=PROFILES["stock"]),
        EngineConfig(kv_bits=8),
        EngineConfig(model="not-here"),
    ):
        assert with_saved_tuning(other) is other


def test_a_damaged_record_keeps_nobody_from_an_answer(folder: Path, kept: Tuning) -> None:
    file = save(folder, replace(kept, model="not-here"))
    gone = EngineConfig(model="not-here")
    assert with_saved_tuning(gone) is gone, "the engine says better that the model is not here"
    plain = EngineConfig()
    for content in (b"{", b"\xff\x00", json.dumps([1]).encode()):
        file.write_bytes(content)
        assert with_saved_tuning(plain) is plain
    done = subprocess.run(
        [*PROGRAM, "ask", "What is 47 + 85?", "--temperature", "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "132" in done.stdout
    assert f"{file} is not a tuning" in paths.log_file().read_text()


def test_an_answer_is_the_same_with_a_record(folder: Path, kept: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for _ in range(2):
        assert run(["ask", "What is 47 + 85?", "--seed", "3", "--temperature", "1", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        save(folder, kept)
    assert answers[0]["text"] == answers[1]["text"]
    assert answers[0]["reasoning"] == answers[1]["reasoning"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tune_measures_once_and_says_so_where_it_can_not_be_kept(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")
    refused = subprocess.run([*PROGRAM, "tune", "--json"], capture_output=True, text=True, check=False)
    report = json.loads(refused.stdout)
    if refused.returncode:  # drafting won, and the record found no place
        assert refused.returncode == 3
        assert report["saved"] is False
        assert "NOT saved" in report["why"]
    assert len(report["rows"]) >= 3
    folder.unlink()
    first = subprocess.run([*PROGRAM, "tune", "--retune", "--json"], capture_output=True, text=True, check=True)
    report = json.loads(first.stdout)
    assert report["saved"] == (report["best_depth"] > 0) == bool(list(folder.glob("*.json")))
    if report["saved"]:
        again = json.loads(subprocess.run([*PROGRAM, "tune", "--json"], capture_output=True, check=True).stdout)
        assert again["rows"] == report["rows"]
        assert "--retune measures again" in again["why"]
