"""What every SQLite file of the program needs: the right to open it, and a check that it is whole. No mlx."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.02


@contextmanager
def turn_to_open(lock: Path, seconds: float) -> Iterator[None]:
    """Hold the lock file, so that two programs starting together do not both put a damaged database right.

    Raises TimeoutError where another program holds it for so long. What is raised inside passes through.
    """
    with closing(os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))) as held:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another program holds {lock} and does not finish") from None
                time.sleep(_POLL_SECONDS)
        yield


def connect(path: Path, busy_seconds: float, text_factory: Callable[[bytes], Any] = str) -> sqlite3.Connection:
    """A connection in autocommit mode to a file whose structure was found whole, for any thread.

    `busy_seconds`: how long a call waits for another process's write. Raises sqlite3.Error, for a file that is not
    whole with the code SQLITE_CORRUPT.
    """
    db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        db.text_factory = text_factory
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(verdict)
    except BaseException:
        db.close()
        raise
    return db


def write_ahead(db: sqlite3.Connection) -> None:
    """Let readers and one writer go on beside each other; a crash of the machine may cost the last writes."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")


def damaged(verdict: str) -> sqlite3.DatabaseError:
    """The error that SQLite itself raises where it meets damage."""
    error = sqlite3.DatabaseError(verdict)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def code(error: sqlite3.Error) -> int:
    """SQLite's primary code of an error, the low byte of its extended one; 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
