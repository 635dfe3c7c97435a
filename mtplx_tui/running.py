"""Which servers of ours run on this machine: a small file for each, written when it serves and removed when it ends.

A file whose process is gone, or whose address is answered by somebody else, is what a kill left, and goes.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtplx_tui import paths
from mtplx_tui.options import EngineOptions

if TYPE_CHECKING:
    from engine.handle import ModelInfo

ASK_SECONDS = 2.0
BUNDLED = "demo-13m"
"""What no --model means; `engine.models.locate` says so, and costs an import that the first frame would wait for."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server of ours.

    Attributes:
        url: its address, without /v1. kind: whether a workbench or `serve` runs it. since: seconds since 1970.
        mode: mtp or ar. context: tokens. keyed: whether it asks for a key.
    """

    url: str
    pid: int
    kind: Literal["workbench", "serve"]
    model: str
    mode: str
    context: int
    keyed: bool
    since: float


@contextmanager
def announced(url: str, kind: Literal["workbench", "serve"], model: "ModelInfo", keyed: bool) -> Iterator[None]:
    """While inside, other commands find this process's server. A folder that can not be written to costs only that."""
    file = paths.servers_folder() / f"{os.getpid()}.json"
    record = Running(url, os.getpid(), kind, model.name, model.mode, model.context, keyed, time.time())
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(file)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()


def servers() -> list[Running]:
    """The servers that run, the oldest first."""
    found = [running for file in sorted(paths.servers_folder().glob("*.json")) if (running := _read(file)) is not None]
    return sorted(found, key=lambda running: running.since)


def serving(model: str, mode: str) -> Running | None:
    """A server of this model in this mode that takes requests, where one runs."""
    alike = (running for running in servers() if (running.model, running.mode) == (model, mode))
    return next((running for running in alike if _ready(running)), None)


def same(options: EngineOptions) -> Running | None:
    """A server that runs what these options ask for; None where they ask for more than the usual."""
    return None if options != EngineOptions() else serving(BUNDLED, options.mode)


def _ready(running: Running) -> bool:
    import httpx

    try:
        return httpx.get(f"{running.url}/ready", timeout=ASK_SECONDS, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _read(file: Path) -> Running | None:
    try:
        record = Running(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        record = None
    if record is None or not _alive(record):
        with suppress(OSError):
            file.unlink()
        return None
    return record


def _alive(running: Running) -> bool:
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    import httpx

    try:
        answer = httpx.get(running.url, timeout=ASK_SECONDS, trust_env=False)
        return bool(answer.json().get("name") == "mtplx-tui")
    except (httpx.HTTPError, ValueError, AttributeError):
        return False
