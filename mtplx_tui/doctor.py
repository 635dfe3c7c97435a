"""Looks at this machine and says what is in the way, each finding with its fix. Changes nothing."""

import importlib.util
import locale
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtplx_tui import paths

Level = Literal["ok", "warn", "problem"]

SLOW_GFLOPS = 8.0
"""MLX's own BLAS does 0.5 to 2.5 on a server core, OpenBLAS on one thread 30 to 100."""

FREE_BYTES = 200 * 2**20
OPENBLAS_FIX = (
    "install OpenBLAS: apt install libopenblas0-pthread (Debian, Ubuntu), dnf install openblas-threads (Fedora), "
    "pacman -S openblas (Arch)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `problem` keeps the program from working, `warn` makes it worse."""

    name: str
    level: Level
    text: str
    fix: str | None = None


def examine() -> list[Finding]:
    """Look at everything; a check that itself fails is a finding too."""
    findings: list[Finding] = []
    for check in (_system, _mlx, _model, _chats, _log, _terminal, _tmux, _port):
        try:
            findings += check()
        except Exception as error:
            name = check.__name__.removeprefix("_")
            text = f"could not be looked at: {type(error).__name__}: {error}"
            fix = "report it, with the file that mtplx-tui doctor --bundle FILE makes"
            findings.append(Finding(name, "problem", text, fix))
    return findings


def _system() -> Iterator[Finding]:
    text = f"{sys.platform}, Python {sys.version.split()[0]}"
    if sys.platform in ("linux", "darwin"):
        yield Finding("system", "ok", text)
    else:
        yield Finding("system", "problem", text, "use Linux or macOS; on Windows, WSL")


def _mlx() -> Iterator[Finding]:
    if importlib.util.find_spec("mlx") is None:
        yield Finding("mlx", "problem", "MLX is not installed", "install mtplx-tui again: uv sync")
        return
    from engine import device

    facts = device.describe()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    yield Finding("versions", "ok", versions)
    memory = facts["memory_bytes"] / 2**30
    yield Finding("device", "ok", f"{facts['kind']} ({facts['name']}), {facts['cores']} cores, {memory:.0f} GiB memory")
    if facts["kind"] == "cpu":
        yield _blas(facts)
        yield _compiler(facts)


def _blas(facts: dict[str, Any]) -> Finding:
    gflops = _gflops()
    speed = f"{gflops:.0f} GFLOP/s"
    if facts["blas"] is None:
        text = f"only the slow one inside MLX ({speed}); drafting can not pay with it"
        return Finding("blas", "warn", text, OPENBLAS_FIX)
    blas = facts["blas"]
    text = f"{blas['name']} ({blas['library']}), {blas['threads']} thread(s), {speed}"
    if _gflops() < SLOW_GFLOPS:
        return Finding(
            "blas", "warn", f"{text}, slower than it should be", "stop what else uses the cores, and look again"
        )
    return Finding("blas", "ok", text)


def _gflops() -> float:
    """Speed of a matrix product in single precision, the best of a few."""
    import mlx.core as mx

    a, b = mx.random.normal((128, 512)), mx.random.normal((512, 512))
    mx.eval(a, b)

    def seconds() -> float:
        start = time.perf_counter()
        mx.eval(a @ b)
        return time.perf_counter() - start

    return 2e-9 * 128 * 512 * 512 / min(seconds() for _ in range(5))


def _compiler(facts: dict[str, Any]) -> Finding:
    if facts["compile_off"]:
        return Finding(
            "compiler", "warn", f"not used: {facts['compile_off']}", "mend that for a few percent more speed"
        )
    if facts["compiler"] is None:
        return Finding("compiler", "ok", "no g++; MLX runs without fused kernels, a few percent slower")
    return Finding("compiler", "ok", f"{facts['compiler']} builds MLX's fused kernels when they are first used")


def _model() -> Iterator[Finding]:
    from engine.errors import EngineError
    from engine.models.inspect import inspect_model

    try:
        inspect_model(None)
    except EngineError as error:
        yield Finding("model", "problem", str(error), "install mtplx-tui again; the bundled model is part of it")
    else:
        yield Finding("model", "ok", "the bundled model is there")


def _chats() -> Iterator[Finding]:
    path = paths.sessions_file()
    there = _nearest(path)
    if not _writable(there, path):
        yield Finding("chats", "problem", f"{there} can not be written, so no chat can be kept", f"make {there} yours")
        return
    free = shutil.disk_usage(there).free
    if free < FREE_BYTES:
        yield Finding("disk", "warn", f"{free / 2**20:.0f} MiB are free for chats in {there}", "free some space")
    if not path.exists():
        yield Finding("chats", "ok", f"none yet; they will be kept in {path}")
        return
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2.0)) as db:
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            count = db.execute("SELECT COUNT(*) FROM sessions").fetchone()[0] if verdict == "ok" else 0
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict == "ok":
        yield Finding("chats", "ok", f"{count} kept in {path}")
    else:
        yield Finding(
            "chats", "warn", f"{path}: {verdict}", "the next start sets a damaged file aside and begins a new one"
        )


def _log() -> Iterator[Finding]:
    path = paths.log_file()
    if _writable(_nearest(path), path):
        yield Finding("log", "ok", str(path))
    else:
        yield Finding(
            "log", "warn", f"{path} can not be written, so crashes leave no details", f"make {path.parent} yours"
        )


def _terminal() -> Iterator[Finding]:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield Finding("terminal", "ok", "not looked at: this is not run in one")
        return
    term = os.environ.get("TERM", "")
    size = os.get_terminal_size(sys.stderr.fileno())
    text = f"{term or 'unknown'}, {size.columns}x{size.lines}"
    if term in ("", "dumb"):
        yield Finding(
            "terminal", "problem", f"{text}: it can not draw a screen", "use another terminal, or mtplx-tui ask"
        )
    elif size.columns < 80 or size.lines < 24:
        yield Finding("terminal", "warn", text, "make it at least 80x24")
    else:
        yield Finding("terminal", "ok", text)
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") != "utf8":
        fix = "start with --ascii, or set LANG to a UTF-8 locale"
        yield Finding("locale", "warn", f"{encoding} can not show the screen's shapes", fix)
    if "SSH_CONNECTION" in os.environ:
        yield Finding("ssh", "ok", "a streaming answer repaints much; ssh -C makes it about 30 times less to send")


def _tmux() -> Iterator[Finding]:
    if "TMUX" not in os.environ or shutil.which("tmux") is None:
        return
    delay = _tmux_option("escape-time")
    if delay.isdigit() and int(delay) > 50:
        fix = "put `set -sg escape-time 10` into ~/.tmux.conf"
        yield Finding("tmux", "warn", f"Esc takes {delay} ms to arrive (escape-time)", fix)
    if _tmux_option("set-clipboard") == "off":
        fix = "put `set -g set-clipboard on` into ~/.tmux.conf"
        yield Finding("tmux", "warn", "copying does not leave tmux (set-clipboard is off)", fix)


def _tmux_option(name: str) -> str:
    asked = subprocess.run(
        ["tmux", "show-options", "-sv", name], capture_output=True, text=True, timeout=5, check=False
    )
    return asked.stdout.strip()


def _port() -> Iterator[Finding]:
    with closing(socket.socket()) as probe:
        probe.settimeout(1.0)
        taken = probe.connect_ex(("127.0.0.1", 8000)) == 0
    text = "taken by another program; the server will use the next free one" if taken else "free for the server"
    yield Finding("port 8000", "ok", text)


def _writable(there: Path, path: Path) -> bool:
    """`path` can be written, or made below `there`."""
    return os.access(there, os.W_OK) and there.is_dir() == (there != path)


def _nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())
