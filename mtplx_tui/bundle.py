"""What somebody who looks into a fault needs to know of this machine, in one file without keys and chats."""

import getpass
import json
import os
import platform
import socket
import sqlite3
import tomllib
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mtplx_tui import paths
from mtplx_tui.doctor import Finding
from mtplx_tui.redact import SECRET_NAME, Redactor, secrets_in

LOG_LINES = 1000
PACKAGES = ("mtplx-tui", "mlx", "mlx-lm", "textual", "rich", "fastapi", "uvicorn", "h11", "httpx", "pydantic", "typer",
            "transformers", "tokenizers", "huggingface-hub", "llguidance")  # fmt: skip
VARIABLES = ("TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS",
             "TEXTUAL_DISABLE_KITTY_KEY", "HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE", "XDG_DATA_HOME",
             "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")  # fmt: skip
PRESENT_ONLY = ("MTPLX_API_KEY", "HF_TOKEN", "TMUX", "SSH_CONNECTION", "CUDA_VISIBLE_DEVICES")
"""Variables of which only is told whether they are set."""
ABOUT = """What mtplx-tui doctor --bundle found on this machine.

findings.txt   what was looked at, what is in the way, and how to mend it; findings.json is the same for programs
machine.json   the system, versions of packages, and variables that matter; of secret ones only whether they are set
settings.json  the saved settings
log.txt        the end of the log

Left out: keys and tokens, names of the user and the machine, everything that a line of the log quotes, lines of a shape
that the program does not write, and lines with words of a saved chat. No chat and no prompt is in here.
Look at it before you send it.
"""


def write(file: Path, findings: Sequence[Finding]) -> list[str]:
    """Write the bundle and give the names of what is in it. Never over a file: raises FileExistsError, OSError."""
    redactor = _redactor()
    parts = {
        "about.txt": ABOUT,
        "findings.txt": redactor.text("\n".join(_told(findings)) + "\n"),
        "findings.json": _json(redactor, [asdict(finding) for finding in findings]),
        "machine.json": _json(redactor, _machine()),
        "settings.json": _json(redactor, _settings()),
        "log.txt": "\n".join(_log(redactor)) + "\n",
    }
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in parts.items():
            bundle.writestr(name, text)
    return list(parts)


def _json(redactor: Redactor, value: object) -> str:
    def clean(value: object) -> object:
        if isinstance(value, str):
            return redactor.text(value)
        if isinstance(value, dict):
            return {name: clean(each) for name, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, list) else value

    return json.dumps(clean(value), indent=2, default=str) + "\n"


def _redactor() -> Redactor:
    secrets = secrets_in(os.environ)
    for place in (Path.home() / ".cache" / "huggingface" / "token", Path(os.environ.get("HF_HOME", "")) / "token"):
        with suppress(OSError, UnicodeDecodeError):
            secrets.add(place.read_text().strip())
    names = [socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name]
    with suppress(KeyError, OSError):  # a user id without a name
        names.append(getpass.getuser())
    return Redactor(secrets, Path.home(), names)


def _told(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.level:8} {finding.name:12} {finding.text}"
        if finding.fix:
            yield f"{'':21} fix: {finding.fix}"


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "set": [name for name in PRESENT_ONLY if name in os.environ],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _settings() -> dict[str, Any] | str:
    """What is saved, without settings that sound secret; or why it is not here."""
    try:
        return _open_ones(tomllib.loads(paths.settings_file().read_text(encoding="utf-8")))
    except FileNotFoundError:
        return "none are saved"
    except (OSError, ValueError) as error:  # a message about TOML names a place, and not what stands there
        return f"can not be read: {error}"


def _open_ones(table: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _open_ones(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if name == "max_tokens" or not SECRET_NAME.search(name)
    }


def _log(redactor: Redactor) -> list[str]:
    path = paths.log_file()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, LOG_LINES)
    except FileNotFoundError:
        return ["there is no log yet"]
    except OSError as error:
        return [f"the log could not be read: {error.strerror}"]
    try:
        return redactor.log(lines, _chats())
    except sqlite3.Error as error:
        return [f"left out: the saved chats could not be read ({error}), so it could not be compared with them"]


def _chats() -> Iterator[str]:
    """Everything that was said in saved chats."""
    path = paths.sessions_file()
    if not path.exists():
        return
    queries = ("SELECT CAST(title AS TEXT), CAST(system AS TEXT) FROM sessions",
               "SELECT CAST(content AS TEXT), CAST(reasoning AS TEXT) FROM messages")  # fmt: skip
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for query in queries:
            for row in db.execute(query):
                yield from row
