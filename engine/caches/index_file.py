"""The SQLite file under the cache's folder: opening it, and starting anew where it is damaged. No mlx."""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)
BUSY_SECONDS = 2.0  # how long a call waits for another process's transaction; they take milliseconds
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE blobs (
    key TEXT PRIMARY KEY, parent TEXT NOT NULL, root TEXT NOT NULL, model TEXT NOT NULL, build TEXT NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, nbytes INTEGER NOT NULL, checksum TEXT NOT NULL, used REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX blobs_by_parent ON blobs (parent);
CREATE INDEX blobs_by_use ON blobs (used);
"""


def sqlite_code(error: sqlite3.Error) -> int:
    """SQLite's primary code of an error; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def turn_to_open(folder: Path) -> Iterator[None]:
    """Hold the right to open, so that two programs starting together do not both replace a damaged index."""
    with closing(os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))) as lock:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another program is opening {folder} and does not finish") from None
                time.sleep(0.02)
        yield


def open_index(path: Path) -> sqlite3.Connection:
    """Open the index; one that is damaged, or of another version, is replaced by an empty one: it is only a cache."""
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if sqlite_code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise
        log.warning("The index %s is damaged or of another version; the cache starts empty (%s).", path, error)
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(FileExistsError):  # SQLite's side files take this mode too
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if verdict != "ok" or version not in (0, _SCHEMA_VERSION):
            damaged = sqlite3.DatabaseError(verdict)
            damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damaged
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db
