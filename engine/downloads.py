"""Downloads into the hub's cache that go on where they were stopped, and count only once every checksum is right.

The hub's own client (2.x) begins each file anew: it writes to a name of its own for each try, and removes it with the
error. Files of models have gigabytes, so here they are fetched over plain HTTP into `<blob>.incomplete`, a name that
the hub's tools know, and taken up again with a Range request. A repository that is not complete has no snapshot, so
neither this program nor another one takes it for a model.
"""

import errno
import fcntl
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from engine.checksums import digest_of
from engine.hub import HubError, HubFile, Listing, endpoint, folder_of, hub_cache, opened, told

MARGIN = 1 << 30
"""Bytes that a download leaves free on the disk."""
TRIES = 5
"""Connections in a row that may break without a byte."""
WAIT_S = 1.0
TELL_S = 0.25
RATE_S = 5.0
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is. Bytes; `rate` a second over the last seconds, `eta` seconds, None where unknown.

    Attributes:
        stage: whether `file` comes, or is read again to compare its checksum.
    """

    stage: Literal["downloading", "checking"]
    file: str
    file_done: int
    file_size: int
    done: int
    total: int
    rate: float | None
    eta: float | None


def download(listing: Listing, on_progress: Callable[[Progress], None] = lambda _: None) -> Path:
    """Fetch what is not here yet; gives the folder of the model.

    May be stopped at any moment, by an exception or a kill: the next call goes on with what is there.

    Raises:
        HubError: the connection breaks for good, the disk is or would be full, a checksum is wrong, or another process
            downloads the same.
        OSError: the cache can not be written.
    """
    folder = folder_of(listing.repo)
    blobs = folder / "blobs"
    with _told_of_disk(listing), _alone(listing):
        blobs.mkdir(parents=True, exist_ok=True)
        _require_room(listing, blobs)
        meter = _Meter(listing.size, on_progress)
        for file in listing.files:
            if not _is_here(file, blobs):
                _fetch(listing, file, blobs, meter)
            meter.finished(file)
        return _commit(listing, folder)


def _is_here(file: HubFile, blobs: Path) -> bool:
    blob = blobs / file.digest
    return blob.is_file() and blob.stat().st_size == file.size


def _require_room(listing: Listing, blobs: Path) -> None:
    parts = {file.digest: blobs / f"{file.digest}.incomplete" for file in listing.files if not _is_here(file, blobs)}
    wanted = sum({file.digest: file.size for file in listing.files if file.digest in parts}.values())
    begun = sum(part.stat().st_size for part in parts.values() if part.exists())
    free = shutil.disk_usage(blobs).free
    if wanted and max(wanted - begun, 0) + MARGIN > free:
        raise HubError(
            f"{listing.repo} needs {_size(max(wanted - begun, 0))} more and {_size(MARGIN)} to spare, and the disk of "
            f"{hub_cache()} has {_size(free)} free. Make room, or set HF_HOME to a folder on a larger disk."
        )


def _fetch(listing: Listing, file: HubFile, blobs: Path, meter: "_Meter") -> None:
    part = blobs / f"{file.digest}.incomplete"
    with part.open("ab") as out:
        if out.tell() > file.size:
            _empty(out)
        tries = 0
        while (have := out.tell()) < file.size:
            broken = HubError(f"{endpoint()} ends {file.name} of {listing.repo} early. Try again later.")
            try:
                with told(listing.repo, listing.revision):
                    _receive(listing, file, out, meter)
            except HubError as error:
                if not _may_pass(error):
                    raise
                broken = error
            if out.tell() < file.size:
                tries = 0 if out.tell() > have else tries + 1
                if tries == TRIES:
                    raise broken
                time.sleep(WAIT_S)
        out.flush()
        os.fsync(out.fileno())
    if digest_of(part, file.size, file.sha256, lambda read: meter.checked(file, read)) != file.digest:
        part.unlink()
        raise HubError(
            f"{file.name} of {listing.repo} is not what the hub promised: its {'SHA-256' if file.sha256 else 'SHA-1'} "
            "is another. It was removed; pull again to fetch it anew."
        )
    part.replace(blobs / file.digest)


def _receive(listing: Listing, file: HubFile, out: BinaryIO, meter: "_Meter") -> None:
    """One connection: append what it brings."""
    have = out.tell()
    with opened(listing.repo, file.name, listing.commit, have) as response:
        if have and response.status_code == 200:  # the whole file: this server does not do ranges
            _empty(out)
        for piece in response.iter_bytes():
            out.write(piece)
            if out.tell() > file.size:
                raise HubError(f"{endpoint()} sends more of {file.name} than the {file.size} bytes that it announced.")
            meter.at(file, out.tell())


def _empty(out: BinaryIO) -> None:
    out.seek(0)
    out.truncate()


def _may_pass(error: HubError) -> bool:
    """Whether to try again by ourselves: the connection broke, or the hub is ill."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    cause = error.__cause__
    if isinstance(cause, HfHubHTTPError):
        return bool(cause.response.status_code >= 500)
    return isinstance(cause, httpx2.TransportError)


def _commit(listing: Listing, folder: Path) -> Path:
    """Make the snapshot, as the hub's client lays it out."""
    snapshot = folder / "snapshots" / listing.commit
    for file in listing.files:
        place = snapshot / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.unlink(missing_ok=True)
            place.symlink_to(os.path.relpath(folder / "blobs" / file.digest, place.parent))
    if listing.revision != listing.commit:
        ref = folder / "refs" / listing.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(listing.commit)
    return snapshot


class _Meter:
    """Tells of the progress, some times a second."""

    def __init__(self, total: int, tell: Callable[[Progress], None]) -> None:
        self._total = total
        self._tell = tell
        self._before = 0  # bytes of the files that are whole
        self._marks: deque[tuple[float, int]] = deque()
        self._told_at = 0.0
        self._told: tuple[str, str] | None = None

    def at(self, file: HubFile, have: int) -> None:
        self._say("downloading", file, have, self._before + have)

    def checked(self, file: HubFile, have: int) -> None:
        self._say("checking", file, have, self._before + file.size)

    def finished(self, file: HubFile) -> None:
        self._before += file.size
        self._told_at = 0.0
        self._say("downloading", file, file.size, self._before)

    def _say(self, stage: Literal["downloading", "checking"], file: HubFile, have: int, done: int) -> None:
        now = time.monotonic()
        if now - self._told_at < TELL_S and (stage, file.name) == self._told:  # what is new is told at once
            return
        self._told_at, self._told = now, (stage, file.name)
        self._marks.append((now, done))
        while now - self._marks[0][0] > RATE_S and len(self._marks) > 2:
            self._marks.popleft()
        then, before = self._marks[0]
        seconds = now - then
        rate = (done - before) / seconds if seconds >= TELL_S and done > before else None
        eta = (self._total - done) / rate if rate else None
        self._tell(Progress(stage, file.name, have, file.size, done, self._total, rate, eta))


@contextmanager
def _alone(listing: Listing) -> Iterator[None]:
    locks = hub_cache() / ".locks" / folder_of(listing.repo).name
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "mtplx-tui.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HubError(f"{listing.repo} is being downloaded by another process already.") from error
        yield


@contextmanager
def _told_of_disk(listing: Listing) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise HubError(
            f"The disk of {hub_cache()} is full, and {listing.repo} did not come whole; what has come is kept. "
            "Make room and pull again."
        ) from error


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
