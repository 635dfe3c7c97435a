"""The settings file: what is kept, what of a damaged or odd one is said, and how commands use it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtplx_tui import exit_codes, paths
from mtplx_tui.cli import run
from mtplx_tui.commands import serve as serve_command
from mtplx_tui.commands import tui as tui_command
from mtplx_tui.options import EngineOptions
from mtplx_tui.saved_settings import SECTIONS, SETTINGS, Saved, SettingError, in_words, live, load, parse, save, setting
from server.settings import Settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is, in a folder that is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return paths.settings_file()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """The exit code of `settings ...`, the JSON on standard output, and standard error."""
    capsys.readouterr()
    code = run(["settings", *arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else None, printed.err


def test_each_setting_says_all_that_a_screen_shows() -> None:
    assert {each.name for each in SETTINGS} == set(Saved.model_fields)
    assert {each.name for each in SETTINGS if each.applies == "server"} == set(Settings.model_fields)
    for each in SETTINGS:
        assert each.section in SECTIONS
        assert each.help.endswith(".")
        assert each.allowed
        assert (each.type == "choice") == bool(each.choices)
        default = Saved.model_fields[each.name].get_default()
        if default is not None and default != ():
            assert parse(each.name, in_words(default)) == default
        for choice in each.choices:
            assert parse(each.name, str(choice)) == choice


GOOD = {
    "temperature": ("0.7", 0.7), "top_k": ("5", 5), "depth": ("3", 3), "aliases": ("a, org/b", ("a", "org/b")),
    "serve_any_name": ("on", True), "port": ("9000", 9000), "kv_bits": ("8", 8), "memory": ("12.5GiB", "12.5GiB"),
    "theme": ("nord", "nord"), "model": ("/a folder/ü", "/a folder/ü"), "presence_penalty": ("-1", -1.0),
}  # fmt: skip


def test_what_is_typed_is_kept_and_read_again(file: Path) -> None:
    for name, (text, value) in GOOD.items():
        assert parse(name, text) == value
        saved = save(file, {name: parse(name, text)}).saved
        assert getattr(saved, name) == value
    loaded = load(file)
    assert loaded.notes == ()
    assert loaded.saved.model_fields_set == set(GOOD)
    assert {name: getattr(loaded.saved, name) for name in GOOD} == {name: value for name, (_, value) in GOOD.items()}
    assert file.stat().st_mode & 0o777 == 0o600
    assert live(loaded.saved).aliases == ("a", "org/b")
    assert save(file, dict.fromkeys(GOOD)).saved == Saved()
    assert [entry.name for entry in file.parent.iterdir()] == ["settings.toml"], "no temporary file is left"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "3"), ("temperature", "nan"), ("temperature", "warm"), ("temperature", ""), ("top_p", "0"),
        ("depth", "9"), ("depth", "1.0"), ("port", "65536"), ("port", "80.5"), ("port", "٣"), ("memory", "8"),
        ("serve_any_name", "maybe"), ("aliases", "a,a"), ("theme", "plaid"), ("kv_bits", "5"), ("host", "a\nb"),
        ("max_tokens", "0"), ("log_level", "debug"), ("wizard", "1"), ("server.depth", "1"), ("__class__", "x"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_with_what_can(file: Path, name: str, text: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse(name, text)
    message = str(refused.value)
    assert name[:20] in message
    assert "must be" in message or "there are temperature, " in message
    assert not file.exists()


def test_one_bad_value_keeps_none_of_a_change(file: Path) -> None:
    save(file, {"port": 9000})
    for bad in ({"top_k": 3, "temperature": 9.0}, {"top_k": 3, "kv_bits": "8"}, {"top_k": 3, "wizard": 1}):
        with pytest.raises(SettingError):
            save(file, bad)
    assert load(file).saved.model_fields_set == {"port"}


def test_a_file_edited_by_hand_keeps_its_comments_and_what_is_unknown(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('# mine\n[display]\ntheme = "plaid" # later\n[later]\nx = 1\n[server]\nport = "80"\nhost = "::1"\n')
    loaded = load(file)
    assert loaded.saved.model_fields_set == {"host"}
    assert [part in note for part, note in zip(("theme", "later.x", "port"), loaded.notes, strict=True)] == [True] * 3
    save(file, {"temperature": 0.5})
    text = file.read_text()
    assert text.startswith('# mine\n[display]\ntheme = "plaid" # later\n[later]\nx = 1\n')
    assert "[sampling]\ntemperature = 0.5\n" in text
    save(file, {"theme": "nord"})
    assert [note.count("theme") for note in load(file).notes] == [0, 0]


def test_a_damaged_file_is_set_aside_whole(file: Path) -> None:
    for number, damage in enumerate((b"= x", b"\xff\xfe", b"[" * 5000, b"a = 1\n" * 200_000, b"\0")):
        save(file, {"port": 9000})
        file.write_bytes(damage)
        loaded = load(file)
        assert loaded.saved == Saved()
        (note,) = loaded.notes
        assert "could not be read" in note
        assert not file.exists()
        kept = [entry for entry in file.parent.iterdir() if entry.name in note]
        assert [entry.read_bytes() for entry in kept] == [damage]
        assert len(list(file.parent.iterdir())) == number + 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first text takes a second to draw
@given(st.dictionaries(st.sampled_from([*Saved.model_fields, "x"]), st.integers() | st.text() | st.booleans()))
def test_no_table_of_values_ends_the_program(values: dict[str, object]) -> None:
    import tomlkit

    path = Path(os.environ["XDG_CACHE_HOME"]) / "any.toml"
    path.write_text(tomlkit.dumps({"display": values, "server": values, **values}))
    loaded = load(path)
    assert len(loaded.notes) + len(loaded.saved.model_fields_set) >= len(values)


def test_the_command_lists_sets_and_takes_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = said(capsys, "set", "presence_penalty", "-1.5")
    assert (code, told["value"], told["source"]) == (exit_codes.OK, -1.5, "file")
    assert said(capsys, "get", "sampling.presence-penalty")[1]["value"] == -1.5
    code, told, _ = said(capsys)
    assert (code, told["file"], told["notes"]) == (exit_codes.OK, str(file), [])
    assert {row["name"]: row["source"] for row in told["settings"] if row["source"] == "file"} == {
        "presence_penalty": "file"
    }
    code, told, _ = said(capsys, "unset", "presence_penalty")
    assert (code, told["value"], told["source"]) == (exit_codes.OK, None, "default")
    assert run(["settings"]) == exit_codes.OK
    listed = capsys.readouterr().out
    assert [name for name in Saved.model_fields if f"  {name} " not in listed] == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["get", "wizard"], exit_codes.BAD_INPUT, "no setting 'wizard'"),
        (["set", "port", "x"], exit_codes.BAD_INPUT, "from 0 to 65535"),
        (["set", "port"], exit_codes.BAD_INPUT, "VALUE"),
        (["set", "port", "9000", "--live"], exit_codes.BAD_INPUT, "no setting of a running server"),
        (["set", "depth", "2", "--live"], exit_codes.FAILED, "No server runs here"),
        (["set", "depth", "2", "--url", "http://127.0.0.1:1"], exit_codes.FAILED, "no server answers"),
        (["get", "depth", "--key-file", "k"], exit_codes.BAD_INPUT, "--live"),
    ],
)
def test_a_change_that_can_not_be_made_is_explained(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, part: str
) -> None:
    got, told, _ = said(capsys, *arguments)
    assert got == code
    assert part in told["error"]["message"]
    assert not file.exists()


def test_a_file_that_can_not_be_written_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.parent.parent.mkdir()
    file.parent.write_text("a file where the folder should be")
    code, told, _ = said(capsys, "set", "port", "9000")
    assert code == exit_codes.FAILED
    assert str(file.parent) in told["error"]["message"]


def test_the_screen_starts_with_what_is_kept_unless_told_otherwise(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []

    def guarded(argv: list[str], log: Path) -> int:
        started.append(json.loads(argv[-1]))
        return 0

    monkeypatch.setattr(tui_command.guard, "run", guarded)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    save(file, {"model": "a-model", "profile": "sustained", "glyphs": "ascii", "kv_bits": 8})
    assert run([]) == exit_codes.OK
    assert run(["--profile", "turbo", "--unicode"]) == exit_codes.OK
    first, second = started
    assert EngineOptions(**first["options"]) == EngineOptions("a-model", profile="sustained", kv_bits="8")
    assert EngineOptions(**second["options"]) == EngineOptions("a-model", kv_bits="8")
    assert (first["ascii"], second["ascii"]) == (True, False)
    file.write_text("[engine]\nprofile = 3\n")
    assert run([]) == exit_codes.OK
    assert "engine.profile is '3'" in capsys.readouterr().err
    assert EngineOptions(**started[2]["options"]) == EngineOptions()


def test_commands_take_what_is_kept_unless_told_otherwise(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, {"host": "0.0.0.0", "depth": 3})
    assert run(["serve"]) == exit_codes.BAD_INPUT
    assert "0.0.0.0" in capsys.readouterr().err
    assert run(["serve", "--host", "192.0.2.1"]) == exit_codes.BAD_INPUT
    assert "192.0.2.1" in capsys.readouterr().err
    assert run(["ask", "hi", "--mode", "ar"]) == exit_codes.BAD_INPUT
    assert "depth 3" in capsys.readouterr().err
    assert [serve_command._live(depth_given=given).depth for given in (False, True)] == [3, "auto"]


def test_settings_need_no_engine() -> None:
    code = "import sys; from mtplx_tui.cli import run; run(['settings', '--json']); sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_a_name_is_found_with_its_section_or_without() -> None:
    assert setting("server.port") is setting("port")
    assert setting("keep-alive-s") is setting("keep_alive_s")
