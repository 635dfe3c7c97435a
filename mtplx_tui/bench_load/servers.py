"""The servers under load, each a process of its own."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from engine.bench.runs import OURS, PEER
from mtplx_tui.commands.common import CommandFailedError

START_S = 300.0
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """`name` for tables; `url` without /v1; `model` as requests have to name it."""

    name: str
    url: str
    model: str


@contextmanager
def ours(model: str | None) -> Iterator[Served]:
    """`mtplx-tui serve`, stopped at the end. Raises CommandFailedError where it does not start."""
    named = [] if model is None else ["--model", model]
    with _process(["-m", "mtplx_tui", "serve", "--json", "--port", "0", *named], OURS) as (process, words):
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        address = json.loads(text or "{}")
        if "url" not in address:
            raise CommandFailedError(f"The server did not start: {_last_line(words)}")
        yield Served(OURS, address["url"], address["model"])


@contextmanager
def peer(folder: Path) -> Iterator[Served]:
    """mlx-lm's server on a model's folder, stopped at the end. Raises CommandFailedError where it does not start."""
    port = _free_port()
    command = ["-m", "mtplx_tui.bench_load.peer", "--model", str(folder), "--port", str(port), "--log-level", "WARNING"]
    with _process(command, PEER) as (process, words):
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailedError(f"mlx-lm's server did not start: {_last_line(words)}")
            time.sleep(0.2)
        yield Served(PEER, url, "default_model")


@contextmanager
def _process(arguments: list[str], name: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """A Python process, and the file that its standard error goes to."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", prefix=f"mtplx-bench-{name}-") as words:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield process, words
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _last_line(words: IO[str]) -> str:
    words.seek(0)
    lines = words.read().strip().splitlines()
    return lines[-1] if lines else "it said nothing"
