"""Comparing what lies in the hub's cache with what the hub promised: it keeps each file under its checksum."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.hub import HubError, folder_of, hub_cache

PIECE = 1 << 20
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Checked:
    """What was compared.

    Attributes:
        files, nbytes: of those that were read. wrong: files that are not what they should be, each with the reason.
        unknown: files that lie there without a checksum, as other programs may leave them.
    """

    files: int
    nbytes: int
    wrong: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def digest_of(path: Path, size: int, sha256: bool, on_read: Callable[[int], None]) -> str:
    """The file's SHA-256, or git's SHA-1 of a blob of `size` bytes, in hex; `on_read` hears how many bytes are read."""
    digest = hashlib.sha256() if sha256 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as data:
        while piece := data.read(PIECE):
            digest.update(piece)
            on_read(data.tell())
    return digest.hexdigest()


def check(repo: str, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Checked:
    """Read every file of a repository in the hub's cache. Asks no network and changes nothing.

    Args:
        on_progress: hears bytes read and bytes in all; what it raises ends the reading and passes through.
    Raises:
        HubError: nothing of that name is here. OSError: a file can not be read.
    """
    snapshots = folder_of(repo) / "snapshots"
    files = sorted(path for path in snapshots.rglob("*") if path.is_symlink() or path.is_file())
    if not files:
        raise HubError(f"{repo!a} is not in the hub's cache, {hub_cache()}.")
    blobs: dict[Path, str] = {}
    wrong: list[tuple[str, str]] = []
    unknown: list[str] = []
    for path in files:
        name = "/".join(path.relative_to(snapshots).parts[1:])
        blob = path.resolve()
        if not blob.is_file():
            wrong.append((name, "it is missing"))
        elif _SHA256.fullmatch(blob.name) or _SHA1.fullmatch(blob.name):
            blobs.setdefault(blob, name)
        else:
            unknown.append(name)
    sizes = {blob: blob.stat().st_size for blob in blobs}
    total, before = sum(sizes.values()), 0
    for blob, name in blobs.items():
        sha256 = len(blob.name) == 64
        if digest_of(blob, sizes[blob], sha256, partial(_tell, on_progress, before, total)) != blob.name:
            wrong.append((name, f"its {'SHA-256' if sha256 else 'SHA-1'} is not the one that the hub gave"))
        before += sizes[blob]
    return Checked(len(blobs), total, tuple(wrong), tuple(unknown))


def _tell(on_progress: Callable[[int, int], None], before: int, total: int, read: int) -> None:
    on_progress(before + read, total)
