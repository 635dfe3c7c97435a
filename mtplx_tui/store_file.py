"""The file under the store: opening it, setting a damaged one aside, and saying in plain words what went wrong."""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from engine import database

SCHEMA_VERSION = 2
BUSY_SECONDS = 2.0
"""How long a call waits for another process's write. Writes take milliseconds; more means that something hangs."""
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

SCHEMA = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, title TEXT NOT NULL DEFAULT '', updated REAL NOT NULL,
    head INTEGER, system TEXT NOT NULL DEFAULT '', options TEXT
);
CREATE INDEX sessions_by_time ON sessions (updated);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id INTEGER NOT NULL REFERENCES sessions (id),
    role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL, stats TEXT, finish_reason TEXT, parent INTEGER
);
CREATE INDEX messages_by_session ON messages (session_id, id);
CREATE INDEX messages_by_parent ON messages (parent);
"""
"""A session's messages are a tree: each names the one it follows, and the session's `head` is the end of the path that
is shown."""

TO_VERSION_2 = """
ALTER TABLE sessions ADD COLUMN head INTEGER;
ALTER TABLE sessions ADD COLUMN system TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN options TEXT;
ALTER TABLE messages ADD COLUMN parent INTEGER;
UPDATE messages SET parent = (
    SELECT MAX(old.id) FROM messages AS old WHERE old.session_id = messages.session_id AND old.id < messages.id
);
UPDATE sessions SET head = (SELECT MAX(id) FROM messages WHERE session_id = sessions.id);
CREATE INDEX messages_by_parent ON messages (parent);
"""
"""Version 1 had a list of messages in each session."""


class StoreError(Exception):
    """Base of everything the store can refuse; its text can be shown to a user as it is."""


class StoreFullError(StoreError):
    """The disk has no room."""


class StoreLockedError(StoreError):
    """Another program holds the file."""


class StoreCorruptError(StoreError):
    """The file was damaged while it was open. The next start sets it aside."""


class StoreGoneError(StoreError):
    """There is no such chat or message: it was deleted, perhaps by another program."""


class StoreUnavailableError(StoreError):
    """The file can not be opened, read or written."""


class StoreVersionError(StoreError):
    """A newer version of the program wrote the file."""


def open_file(path: Path) -> sqlite3.Connection:
    """Open or create the file, check that it is whole, and bring it to this version's tables.

    Raises sqlite3.Error, OSError or StoreVersionError; see `is_damage` and `plain`.
    """
    # SQLite would make the file readable to all; chats are private, and its side files take the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = database.connect(path, BUSY_SECONDS, _text)
    try:
        database.write_ahead(db)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StoreVersionError(
                f"{path} was written by a newer mtplx-tui (format {version}; this one knows {SCHEMA_VERSION}). "
                "Update mtplx-tui, or move the file away."
            )
        if version == 0:
            db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        if version == 1:
            db.executescript(f"BEGIN IMMEDIATE; {TO_VERSION_2} PRAGMA user_version = 2; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def turn_to_open(path: Path) -> Iterator[None]:
    """Hold the right to open, so that two programs starting together do not both set a damaged file aside."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(database.turn_to_open(path.with_name(path.name + ".lock"), BUSY_SECONDS))
        except TimeoutError:
            raise StoreLockedError(f"Another program is opening {path} and does not finish. Close it.") from None
        yield


def set_aside(path: Path) -> Path:
    """Rename the file and its side files to names that are free; gives the file's new one."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept = path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.stem}.damaged-{stamp}-{number}{path.suffix}")
    for side in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + side).rename(kept.with_name(kept.name + side))
    return path.rename(kept)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a flipped bit that the check of the file's structure can not see
        return raw.decode("utf-8", "replace")


def is_damage(error: sqlite3.Error) -> bool:
    """True where the file itself is broken or is no database, rather than out of reach."""
    return database.code(error) in DAMAGE


def plain(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """The error that a user can read."""
    if isinstance(error, OSError) and error.errno != errno.ENOSPC:
        return StoreUnavailableError(f"The saved chats can not be kept in {path}: {error.strerror or error}.")
    code = sqlite3.SQLITE_FULL if isinstance(error, OSError) else database.code(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"The disk is full, so the chat is not saved any more ({path}). Free some space.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLockedError(f"Another program holds {path} locked. Close it and try again.")
    if code in DAMAGE:
        return StoreCorruptError(
            f"The saved chats in {path} are damaged ({error}). Start again: the file is then set aside, not deleted."
        )
    return StoreUnavailableError(f"The saved chats in {path} can not be read or written: {error}.")
