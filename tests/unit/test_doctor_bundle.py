"""`mtplx-tui doctor --bundle`: what is in it, and that nothing is which is nobody's business."""

import getpass
import json
import socket
import zipfile
from pathlib import Path

import pytest

from mtplx_tui import paths
from mtplx_tui.cli import run
from mtplx_tui.redact import Redactor
from mtplx_tui.store import Store

KEY = "mtplx-Zk3vN8qWx2Lr7TyB4mHs9PdC"
PLANTED = {
    "a key of the environment": KEY,
    "a token of the hub": "hf_AbCdEfGhIjKlMnOpQrStUvWx12",
    "the hub's token of a file": "plainwordtoken",
    "a key like OpenAI's": "sk-proj-9aBcDeFgHiJkLmNoP",
    "a bearer token": "eyJhbGciOi.J9eyJz.dWIiOiIx",
    "a password in an address": "hunter2hunter2",
    "a key by its name": "correct-horse",
    "a random key": "q7Jw0kRZp3Vn5XcT8bYu1LsEa6Gf",
    "a mail address": "mia@example.org",
    "a quoted prompt": "Where did I bury the treasure",
    "an unquoted prompt of a saved chat": "my landlord owes me money",
    "a short message": "rosebud",
    "a system prompt": "Answer like a pirate of old",
    "an answer in a line of native code": "the lamp is with Ben",
    "the rest of a quote that never ends": "is it a secret recipe",
}
LOG = f"""2026-01-05 16:02:03,123 WARNING server.access: key {KEY} refused
2026-01-05 16:02:03,124 WARNING engine.hub: asked with hf_AbCdEfGhIjKlMnOpQrStUvWx12 and plainwordtoken
2026-01-05 16:02:03,125 ERROR mtplx_tui.cli: Authorization: Bearer eyJhbGciOi.J9eyJz.dWIiOiIx
2026-01-05 16:02:03,126 ERROR server.run: proxy http://mia:hunter2hunter2@proxy.example and sk-proj-9aBcDeFgHiJkLmNoP
2026-01-05 16:02:03,127 ERROR server.run: api_key=correct-horse, or q7Jw0kRZp3Vn5XcT8bYu1LsEa6Gf of mia@example.org
2026-01-05 16:02:04,000 ERROR engine.engine: prompt 'Where did I bury the treasure' failed
2026-01-05 16:02:04,001 ERROR engine.engine: it said My landlord owes me money, and that rosebud
2026-01-05 16:02:04,002 ERROR engine.engine: Answer like a pirate of old is no template
the lamp is with Ben
2026-01-05 16:02:04,003 ERROR engine.engine: got "is it a secret recipe
Traceback (most recent call last):
  File "HOME/mtplx/engine/engine.py", line 12, in loop
    raise ValueError(text)
ValueError: step 7 took 300 ms
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a log, settings, a hub token and a chat, all of them with something planted."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MTPLX_API_KEY", KEY)
    for file, text in (
        (paths.log_file(), LOG.replace("HOME", str(home))),
        (
            paths.settings_file(),
            f'[server]\nport = 8123\nadmin_key = "{KEY}"\n[engine]\nmodel = "{home}/models/mine"\n',
        ),
        (home / ".cache" / "huggingface" / "token", "plainwordtoken\n"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    paths.sessions_file().parent.mkdir(parents=True, exist_ok=True)
    store = Store(paths.sessions_file())
    made = store.new_session("demo-13m")
    store.describe(made, "Answer like a pirate of old", {})
    store.add_message(made, "user", "Help: my landlord owes me money!")
    store.add_message(made, "user", "rosebud")
    store.close()
    return home


def test_a_bundle_tells_what_is_needed_and_nothing_that_was_planted(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.zip"
    assert run(["doctor", "--bundle", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bundle"]["file"] == str(file)
    assert all(finding["fix"] for finding in told["findings"] if finding["level"] != "ok")
    assert file.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(file) as bundle:
        assert bundle.namelist() == told["bundle"]["parts"]
        parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    everything = "\n".join(parts.values())
    found = [what for what, text in PLANTED.items() if text.lower() in everything.lower()]
    assert found == []
    assert str(home) not in everything
    for name in (socket.gethostname(), getpass.getuser()):
        assert name in ("root", "localhost") or name not in everything
    machine = json.loads(parts["machine.json"])
    assert machine["set"] == ["MTPLX_API_KEY"]
    assert machine["packages"].keys() >= {"mlx", "textual", "tokenizers"}
    assert all(machine["packages"].values())
    assert json.loads(parts["settings.json"]) == {"server": {"port": 8123}, "engine": {"model": "~/models/mine"}}
    assert {finding["name"] for finding in json.loads(parts["findings.json"])} >= {"versions", "device", "chats"}
    kept = parts["log.txt"].splitlines()
    assert len(kept) == len(LOG.splitlines()), "what is taken out leaves a word in its place"
    assert kept[5] == "2026-01-05 16:02:04,000 ERROR engine.engine: prompt '...' failed"
    assert kept[-4:] == [
        "Traceback (most recent call last):",
        '  File "~/mtplx/engine/engine.py", line 12, in loop',
        "[a line of 26 characters [removed]]",
        "ValueError: step 7 took 300 ms",
    ]


def test_a_bundle_is_never_written_over_a_file_and_a_damaged_file_of_chats_leaves_the_log_out(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.zip"
    file.write_text("mine")
    assert run(["doctor", "--bundle", str(file)]) == 2
    assert "is there already, and nothing was written" in capsys.readouterr().err
    assert file.read_text() == "mine"
    paths.sessions_file().write_bytes(b"no database" * 1000)
    for side in paths.sessions_file().parent.glob("sessions.db-*"):
        side.unlink()
    assert run(["doctor", "--bundle", str(tmp_path / "other.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "other.zip") as bundle:
        assert bundle.read("log.txt").decode().startswith("left out: the saved chats could not be read (")


def test_names_of_the_user_and_of_the_machine_are_taken_out_as_words_only() -> None:
    redactor = Redactor((), Path("/home/ann"), ("ann", "buildbox"))
    assert (
        redactor.text("/home/ann/x of Ann at buildbox-3, in an annex") == "~/x of [removed] at [removed]-3, in an annex"
    )
    for plain in (
        "mlx 0.32.4",
        "depth 3, 420 tok/s",
        "engine/models/load.py:120",
        "libopenblas0-pthread",
        "max_tokens",
    ):
        assert redactor.text(plain) == plain
