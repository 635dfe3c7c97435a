"""The SQLite file under the cache's folder: opening it, and starting anew where it is damaged. No mlx."""

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from engine import database

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


def open_index(path: Path) -> sqlite3.Connection:
    """Open the index; one that is damaged, or of another version, is replaced by an empty one: it is only a cache."""
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if database.code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise
        log.warning("The index %s is damaged or of another version; the cache starts empty (%s).", path, error)
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(FileExistsError):  # SQLite's side files take this mode too
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = database.connect(path, BUSY_SECONDS)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _SCHEMA_VERSION):
            raise database.damaged(f"format {version}")
        database.write_ahead(db)
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db
