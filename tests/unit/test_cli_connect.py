"""`mtplx-tui connect`: what each client is told, and what is left of its own settings."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pexpect
import pytest
from ruamel.yaml import YAML

from mtplx_tui.cli import run
from mtplx_tui.connect.clients import CLIENTS, Target
from mtplx_tui.connect.merge import MergeError, difference, merged, write

TARGET = Target("http://127.0.0.1:8123", "qwen3.5-9b", 65536, keyed=False)
KEYED = Target("http://10.0.0.7:8000", "qwen3.5-9b", 65536, keyed=True)
READERS = {"json": json.loads, "toml": tomllib.loads, "yaml": lambda text: YAML(typ="safe").load(text)}
WITH_FILES = [name for name in CLIENTS if name != "open-webui"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def read(client: str, text: str) -> Any:
    settings = CLIENTS[client](TARGET, Path("/home/me")).settings
    assert settings is not None
    return READERS[settings.form](text)


@pytest.mark.parametrize("client", WITH_FILES)
def test_settings_name_the_server_and_its_model(client: str, home: Path) -> None:
    settings = CLIENTS[client](TARGET, home).settings
    assert settings is not None
    assert settings.file.is_relative_to(home)
    text = merged(settings, "")
    assert TARGET.url in text
    assert TARGET.model in text
    READERS[settings.form](text)
    assert merged(settings, text) == text, "once it is there, nothing changes"
    assert difference(settings, text, text) == ""


@pytest.mark.parametrize("client", CLIENTS)
def test_no_key_is_ever_written_and_a_keyed_server_says_where_it_goes(client: str, home: Path) -> None:
    connection = CLIENTS[client](KEYED, home)
    said = "".join([*connection.notes, *(connection.variables or {}), *(connection.variables or {}).values()])
    text = "" if connection.settings is None else merged(connection.settings, "")
    assert "MTPLX_API_KEY" in said + text


@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode", "pi"])
def test_a_model_with_too_little_room_is_said(client: str, home: Path) -> None:
    small = CLIENTS[client](Target(TARGET.url, "demo-13m", 2048, keyed=False), home)
    assert any("2,048" in note for note in small.notes)
    assert not any("2,048" in note for note in CLIENTS[client](TARGET, home).notes)


def test_what_else_stands_in_a_json_file_stays(home: Path) -> None:
    settings = CLIENTS["claude-code"](TARGET, home).settings
    assert settings is not None
    before = {"permissions": {"allow": ["Bash(ls:*)"]}, "env": {"FOO": "ü", "ANTHROPIC_MODEL": "opus"}, "model": "opus"}
    after = json.loads(merged(settings, json.dumps(before)))
    assert after["permissions"] == before["permissions"]
    assert (after["model"], after["env"]["FOO"]) == ("opus", "ü")
    assert after["env"]["ANTHROPIC_MODEL"] == TARGET.model


def test_comments_in_a_toml_file_stay(home: Path) -> None:
    settings = CLIENTS["codex"](TARGET, home).settings
    assert settings is not None
    before = '# mine\nmodel = "gpt-5" # the large one\n\n[model_providers.other]\nname = "Other"\n'
    after = merged(settings, before)
    assert "# mine" in after
    assert "# the large one" in after
    data = tomllib.loads(after)
    assert data["model"] == TARGET.model
    assert set(data["model_providers"]) == {"other", "mtplx"}


def test_a_yaml_list_keeps_its_other_entries_and_its_comments(home: Path) -> None:
    settings = CLIENTS["continue"](TARGET, home).settings
    assert settings is not None
    before = (
        "name: Mine # kept\nversion: 2.0.0\nschema: v1\nmodels:\n"
        "  - name: mtplx-tui\n    provider: ollama\n    model: old\n"
        "  - name: GPT # paid\n    provider: openai\n    model: gpt-5\n"
    )
    after = merged(settings, before)
    assert "# kept" in after
    assert "# paid" in after
    models = read("continue", after)["models"]
    assert [model["name"] for model in models] == ["mtplx-tui", "GPT"]
    assert models[0]["model"] == TARGET.model


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("opencode", "// a comment\n{}"),
        ("claude-code", '{"env": 5}'),
        ("claude-code", "[]"),
        ("codex", "model = "),
        ("codex", 'model_providers = "none"'),
        ("continue", "models: {a: 1}"),
        ("continue", "a: [1"),
        ("continue", "just a text"),
    ],
)
def test_a_file_that_can_not_be_merged_into_is_left_alone(
    client: str, text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = CLIENTS[client](TARGET, home).settings
    assert settings is not None
    with pytest.raises(MergeError, match="by hand"):
        merged(settings, text)
    settings.file.parent.mkdir(parents=True)
    settings.file.write_text(text)
    assert run(["connect", client, "--write", "--yes"]) == 3
    assert settings.file.read_text() == text
    assert "by hand" in capsys.readouterr().err


def test_a_link_stays_a_link_and_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    real.chmod(0o640)
    link.symlink_to(real)
    write(link, '{"a": 1}\n')
    assert link.is_symlink()
    assert real.read_text() == '{"a": 1}\n'
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_without_a_server_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "codex"]) == 0
    out, err = capsys.readouterr()
    assert "mtplx-tui serve" in err
    assert tomllib.loads(out.split("\ncodex\n")[0])["model_providers"]["mtplx"]["wire_api"] == "responses"


def test_json_has_all_of_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "pi", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["providers"]["mtplx"]["models"][0]["id"] == "demo-13m"
    assert told["file"].startswith(str(home))


@pytest.mark.parametrize("arguments", [["connect", "emacs"], ["connect", "open-webui", "--write"]])
def test_what_can_not_be_asked_is_said(arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.strip()


def test_an_address_where_nobody_answers_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["connect", "codex", "--url", "http://127.0.0.1:9"]) == 3
    assert "http://127.0.0.1:9" in capsys.readouterr().err


def test_write_shows_the_change_and_asks(home: Path) -> None:
    file = home / ".codex" / "config.toml"
    child = pexpect.spawn(sys.executable, ["-m", "mtplx_tui", "connect", "codex", "--write"], timeout=30)
    child.expect(r"\+model_provider")
    child.expect("Write this to")
    child.sendline("n")
    child.expect("nothing was written")
    child.expect(pexpect.EOF)
    assert not file.exists()
    assert run(["connect", "codex", "--write"]) == 2, "no terminal, no --yes"
    assert not file.exists()
    assert run(["connect", "codex", "--write", "--yes"]) == 0
    assert tomllib.loads(file.read_text())["model_provider"] == "mtplx"
