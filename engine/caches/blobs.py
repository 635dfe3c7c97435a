"""A folder of checksummed files with an index and a limit on its bytes. No mlx.

Several processes may use one folder, and any of them may be killed at any moment. A file is written under another
name, brought to the disk and renamed; the rename and the row in the index that makes it count are one transaction, as
are a removal and its row. So a file without a row, or a row without its file, is what a kill left, and goes. The
folder and its files are the user's alone, since prompts can be read out of keys and values.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from engine import database
from engine.caches import index_file

_CHUNK = 8 << 20
_CHAIN = "WITH RECURSIVE chain (key) AS (VALUES (?) UNION SELECT parent FROM blobs JOIN chain USING (key))"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file's row in the index.

    Attributes:
        key: its address, and its name. parent: address of the prefix that it continues; root: of the empty prefix.
        model, build: what wrote it, in words.
        start, end: which tokens of the prompt it is about.
        checksum: blake2b of the whole file. used: when it last was, in seconds since 1970; never later than its
            parent's, so that the beginning of a conversation outlives the end.
    """

    key: str
    parent: str
    root: str
    model: str
    build: str
    start: int
    end: int
    nbytes: int = 0
    checksum: str = ""
    used: float = 0.0


class UnusableError(Exception):
    """A file can not be used; the text says why, in the words of a reason for a miss."""


class GoneError(UnusableError):
    """A file was removed meanwhile, as another process may at any time."""


class TooLargeError(Exception):
    """A prefix does not fit under the limit, however much else is removed."""


class Blobs:
    """One connection to a folder; for one thread. Any call may raise OSError or sqlite3.Error.

    Args:
        limit: most bytes that the files may have together; None for a reader that never writes.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self._limit = limit
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._files = folder / "blobs"
        self._files.mkdir(mode=0o700, exist_ok=True)
        with database.turn_to_open(folder / "lock", index_file.BUSY_SECONDS):
            self._db = index_file.open_index(folder / "index.db")

    def close(self) -> None:
        self._db.close()

    def has(self, key: str) -> bool:
        return self._db.execute("SELECT 1 FROM blobs WHERE key = ?", (key,)).fetchone() is not None

    def entries(self) -> list[Entry]:
        """All there are, the last used first."""
        return self._select("ORDER BY used DESC, end")

    def continuing(self, parent: str) -> list[tuple[str, int, int]]:
        """(key, start, end) of what continues a prefix."""
        return self._db.execute("SELECT key, start, end FROM blobs WHERE parent = ?", (parent,)).fetchall()

    def other_builds(self, model: str, root: str) -> list[str]:
        """What else, in words, has kept prefixes of a model of that name."""
        query = "SELECT DISTINCT build FROM blobs WHERE model = ? AND root != ?"
        return [build for (build,) in self._db.execute(query, (model, root))]

    def checked(self, key: str) -> Path:
        """The file of a key, read through and found whole. Raises UnusableError; `drop` it then."""
        entries = self._select("WHERE key = ?", key)
        if not entries:
            raise GoneError("the file of this prefix was removed meanwhile")
        self.check(entries[0])
        return self._path(key)

    def check(self, entry: Entry) -> None:
        """Read a file through. Raises UnusableError where it is not what its row says."""
        try:
            with self._path(entry.key).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.nbytes:
                    raise UnusableError(
                        f"the file of this prefix was damaged: it has {size} bytes instead of {entry.nbytes}"
                    )
                digest = _hash()
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            raise GoneError("the file of this prefix was removed meanwhile") from None
        except OSError as error:
            raise UnusableError(f"the file of this prefix can not be read: {error}") from error
        if digest.hexdigest() != entry.checksum:
            raise UnusableError("the file of this prefix was damaged: its checksum is wrong")

    def drop_broken(self, key: str) -> bool:
        """Remove a file that is not what its row says now; another process may have written it anew meanwhile."""
        with self._transaction():
            for entry in self._select("WHERE key = ?", key):
                try:
                    self.check(entry)
                except UnusableError:
                    self._remove(key)
                    return True
        return False

    def touch(self, key: str) -> None:
        """A prefix is used now, and with it all that it continues."""
        self._db.execute(f"{_CHAIN} UPDATE blobs SET used = ? WHERE key IN (SELECT key FROM chain)", (key, time.time()))

    def write(self, entry: Entry, parts: Sequence[bytes]) -> None:
        """Keep a file, making room for it.

        Nothing happens where there is one of its key, or where what it continues is not here, since it could not be
        used.

        Raises TooLargeError where the limit does not allow for the entry with all that it continues.
        """
        assert self._limit is not None
        if self.has(entry.key) or not (entry.parent == entry.root or self.has(entry.parent)):
            return
        size = sum(map(len, parts))
        chain = self._db.execute(
            f"{_CHAIN} SELECT coalesce(sum(nbytes), 0) FROM blobs WHERE key IN (SELECT key FROM chain)", (entry.parent,)
        )
        needed = size + chain.fetchone()[0]
        if needed > self._limit:
            raise TooLargeError(f"it has {needed} bytes up to here, and the limit is {self._limit}")
        temporary = self._files / f"{entry.key}.{os.urandom(4).hex()}.tmp"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # for as long as it lives, no other process takes this for a leftover
            digest = _hash()
            for part in parts:
                digest.update(part)
                _write_all(file, part)
            os.fsync(file)
            with self._transaction():
                if not self.has(entry.key):
                    self.touch(entry.parent)  # or making room could remove what this continues
                    self._make_room(self._limit - size, entry.build)
                    row = (*astuple(entry)[:7], size, digest.hexdigest(), time.time())
                    self._db.execute(f"INSERT INTO blobs VALUES ({', '.join('?' * len(row))})", row)
                    self.touch(entry.parent)
                    temporary.rename(self._path(entry.key))
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
            os.close(file)

    def tidy(self, build: str) -> None:
        """Remove leftovers, and what is over the limit: first what no program of this build can read."""
        assert self._limit is not None
        self.remove_leftovers()
        with self._transaction():
            self._make_room(self._limit, build)

    def remove_leftovers(self) -> int:
        """Remove what kills left: files without a row, and rows without their file. Gives how many there were."""
        with self._transaction():
            rows = dict(self._db.execute("SELECT key, nbytes FROM blobs").fetchall())
            sizes = {}
            removed = 0
            for file in os.scandir(self._files):
                key = file.name.removesuffix(".safetensors")
                if key in rows and file.name != key:
                    sizes[key] = file.stat().st_size
                else:
                    removed += _remove_unless_open(Path(file.path))
            missing = [key for key, size in rows.items() if sizes.get(key) != size]
            for key in missing:
                self._remove(key)
        return removed + len(missing)

    def clear(self) -> None:
        """Remove everything, for every process that uses the folder."""
        with self._transaction():
            self._db.execute("DELETE FROM blobs")
            for file in os.scandir(self._files):
                _remove_unless_open(Path(file.path))

    def _make_room(self, room: int, build: str) -> None:
        """Remove files until those that stay have `room` bytes or less together."""
        total = self._db.execute("SELECT coalesce(sum(nbytes), 0) FROM blobs").fetchone()[0]
        if total <= room:
            return
        oldest = "SELECT key, nbytes FROM blobs ORDER BY build = ?, used, end DESC"
        for key, size in self._db.execute(oldest, (build,)).fetchall():
            self._remove(key)
            total -= size
            if total <= room:
                return

    def _remove(self, key: str) -> None:
        self._db.execute("DELETE FROM blobs WHERE key = ?", (key,))
        with suppress(FileNotFoundError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._files / f"{key}.safetensors"

    def _select(self, rest: str, *values: str) -> list[Entry]:
        columns = ", ".join(field.name for field in fields(Entry))
        return [Entry(*row) for row in self._db.execute(f"SELECT {columns} FROM blobs {rest}", values)]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has ended it by itself where the disk is full
                self._db.execute("ROLLBACK")
            raise


def _hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)  # 1.4 GB/s on an EPYC core


def _write_all(file: int, part: bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(file, rest) :]


def _remove_unless_open(path: Path) -> bool:
    """Remove a file, unless a process is just writing it; True where it is removed."""
    with suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink()
        return True
    return False
