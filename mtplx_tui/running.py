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
from typing import TYPE_CHECKING, Any, Literal

from mtplx_tui import paths
from mtplx_tui.options import UsageError

if TYPE_CHECKING:
    import httpx

    from engine.config import EngineConfig
    from engine.handle import ModelInfo

ASK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Start:
    """What an engine was started with, as far as two of the same model can differ; as in EngineConfig.

    Attributes:
        profile: its name.
    """

    mode: str
    depth: int | None
    profile: str
    kv_bits: int | None
    memory_bytes: int | None

    @classmethod
    def of(cls, config: "EngineConfig", mode: str) -> "Start":
        """`mode` is the engine's own: a workbench may have changed it since."""
        depth = None if mode == "ar" else config.depth  # where nothing is drafted, 0 and auto are one
        return cls(mode, depth, config.profile.name, config.kv_bits, config.memory_bytes)


@dataclass(frozen=True, slots=True)
class Front:
    """Where a server was asked to listen, by which further names it may be called, and what it answers beside the chat
    model. `port` may have been taken, so that it is not the one in its address."""

    host: str = "localhost"
    port: int = 8000
    names: tuple[str, ...] = ()
    embedding_model: str | None = None
    rerank_model: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A server of ours.

    Attributes:
        url: its address, without /v1. kind: whether a workbench or `serve` runs it. since: seconds since 1970.
        path: the model's folder. mode: mtp or ar. context: tokens. keyed: whether it asks for a key.
    """

    url: str
    pid: int
    kind: Literal["workbench", "serve"]
    model: str
    path: str
    mode: str
    context: int
    keyed: bool
    since: float
    start: Start
    front: Front


@contextmanager
def announced(
    url: str,
    kind: Literal["workbench", "serve"],
    model: "ModelInfo",
    keyed: bool,
    config: "EngineConfig",
    front: Front,
) -> Iterator[None]:
    """While inside, other commands find this process's server. A folder that can not be written to costs only that."""
    file = paths.servers_folder() / f"{os.getpid()}.json"
    record = Running(
        url, os.getpid(), kind, model.name, model.path, model.mode, model.context, keyed, time.time(),
        Start.of(config, model.mode), front,
    )  # fmt: skip
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


def same(config: "EngineConfig", key_file: Path | None, front: Front | None = None) -> Running | None:
    """A server that runs what this config asks for, takes requests, and takes the key that is at hand: the first in the
    file, else the one in MTPLX_API_KEY.

    Args:
        config: options, kept settings and defaults put together.
        front: what the server must have been asked for too, with a key where one is at hand; None where any will do.
    """
    start = Start.of(config, config.mode)
    alike = [each for each in servers() if each.start == start and front in (None, each.front)]
    if not alike:
        return None
    from engine.errors import EngineError
    from engine.models.locate import locate
    from mtplx_tui.remote import http

    try:
        key = http.read_key(key_file)
        found = locate(config.model)
    except (UsageError, EngineError):  # whoever starts an engine or a server of its own will say it
        return None
    for running in alike:
        wanted = (running.model, running.path) == (found.name, str(found.path))
        keyed_alike = front is None or running.keyed == (key is not None)
        if wanted and keyed_alike and _ready(running) and _takes(running, key):
            return running
    return None


def _ready(running: Running) -> bool:
    import httpx

    try:
        return _get(f"{running.url}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def _get(url: str) -> "httpx.Response":
    """Raises httpx.HTTPError. What is announced speaks no TLS, and the system's certificates take 30 ms to read."""
    import httpx

    return httpx.get(url, timeout=ASK_SECONDS, trust_env=False, verify=False)


def _takes(running: Running, key: str | None) -> bool:
    from mtplx_tui.remote.probe import UnreachableError, kind_of

    try:
        return kind_of(running.url, key) == "ours"
    except (UsageError, UnreachableError):
        return False


def _read(file: Path) -> Running | None:
    try:
        record = _record(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, LookupError):
        record = None
    if record is None or not _alive(record):
        with suppress(OSError):
            file.unlink()
        return None
    return record


def _record(found: dict[str, Any]) -> Running:
    front = Front(**found["front"] | {"names": tuple(found["front"]["names"])})
    return Running(**found | {"start": Start(**found["start"]), "front": front})


def _alive(running: Running) -> bool:
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    import httpx

    try:
        return bool(_get(running.url).json().get("name") == "mtplx-tui")
    except (httpx.HTTPError, ValueError, AttributeError):
        return False
