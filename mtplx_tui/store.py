"""Conversations, kept in one SQLite file.

The file is in WAL mode and each call is one transaction, so a killed process loses nothing that a call returned for,
and two programs may share it.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtplx_tui.store_file import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
    is_damage,
    open_file,
    plain,
    set_aside,
    turn_to_open,
)

__all__ = [
    "MessageRow",
    "Role",
    "SessionRow",
    "Store",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StoreUnavailableError",
    "StoreVersionError",
]

Role = Literal["system", "user", "assistant", "tool"]

TITLE_CHARS = 60


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A conversation in the list. `updated` is in unix seconds; `title` is empty before the first user message."""

    id: int
    title: str
    model: str
    updated: float
    messages: int


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message. `stats` and `finish_reason` belong to finished answers of the assistant."""

    id: int
    role: Role
    content: str
    reasoning: str
    stats: dict[str, Any] | None
    finish_reason: str | None


class Store:
    """The conversations of one file. Any thread may call; calls wait for each other.

    Attributes:
        notice: what the user must be told about opening, such as a damaged file that was set aside; else None.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        A damaged file is renamed beside the new one, never deleted, and `notice` says so.

        Raises:
            StoreUnavailableError, StoreLockedError, StoreFullError, StoreVersionError: the file is left as it is.
        """
        self.path = path
        self.notice: str | None = None
        self._lock = threading.RLock()
        with self._plain_errors(), turn_to_open(path):
            try:
                self._db = open_file(path)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                kept = set_aside(path)
                self._db = open_file(path)
                self.notice = (
                    f"The saved chats in {path} were damaged. They were set aside as {kept.name}; chats start afresh."
                )

    def close(self) -> None:
        """Close the file. Calls after this raise StoreError."""
        with self._lock, self._plain_errors():
            self._db.close()

    def new_session(self, model: str) -> int:
        """Start a conversation and give its id."""
        with self._write() as db:
            row = db.execute("INSERT INTO sessions (model, updated) VALUES (?, ?)", (_pack(model), time.time()))
            return _row_id(row)

    def sessions(self, limit: int = 200) -> list[SessionRow]:
        """The conversations, the last used first."""
        query = """
            SELECT id, title, model, updated, (SELECT COUNT(*) FROM messages WHERE session_id = sessions.id)
            FROM sessions ORDER BY updated DESC, id DESC LIMIT ?
        """
        return [SessionRow(i, _unpack(t), _unpack(m), at, n) for i, t, m, at, n in self._rows(query, limit)]

    def messages(self, session_id: int) -> list[MessageRow]:
        """The messages of one conversation, in order; none for an id that does not exist."""
        query = """
            SELECT id, role, content, reasoning, stats, finish_reason FROM messages WHERE session_id = ? ORDER BY id
        """
        return [
            MessageRow(i, role, _unpack(content), _unpack(reasoning), json.loads(stats) if stats else None, finish)
            for i, role, content, reasoning, stats, finish in self._rows(query, session_id)
        ]

    def add_message(
        self,
        session_id: int,
        role: Role,
        content: str,
        reasoning: str = "",
        stats: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> int:
        """Append a message and give its id. The first user message names the conversation.

        Raises StoreError where there is no such session.
        """
        with self._write() as db:
            if not db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone():
                raise StoreError(f"There is no saved chat number {session_id}.")
            row = db.execute(
                "INSERT INTO messages (session_id, role, content, reasoning, stats, finish_reason)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (session_id, role, _pack(content), _pack(reasoning), _pack_stats(stats), finish_reason),
            )
            db.execute("UPDATE sessions SET updated = ? WHERE id = ?", (time.time(), session_id))
            if role == "user":
                title = _pack(_title(content))
                db.execute("UPDATE sessions SET title = ? WHERE id = ? AND title = ''", (title, session_id))
            return _row_id(row)

    def update_message(
        self,
        message_id: int,
        content: str,
        reasoning: str,
        stats: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> None:
        """Replace what a message holds, as an answer grows. Raises StoreError where there is no such message."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, stats = ?, finish_reason = ? WHERE id = ?",
                (_pack(content), _pack(reasoning), _pack_stats(stats), finish_reason, message_id),
            )
            if not changed.rowcount:
                raise StoreError(f"There is no saved message number {message_id}.")
            db.execute(
                "UPDATE sessions SET updated = ? WHERE id = (SELECT session_id FROM messages WHERE id = ?)",
                (time.time(), message_id),
            )

    def _rows(self, query: str, parameter: int) -> list[tuple[Any, ...]]:
        with self._lock, self._plain_errors():
            return self._db.execute(query, (parameter,)).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._plain_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk rolls back by itself
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            raise StoreError(f"The saved chats in {self.path} are closed.") from error
        except (sqlite3.Error, OSError) as error:
            raise plain(error, self.path) from error


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "only called after an INSERT"
    return cursor.lastrowid


def _pack(text: str) -> str | bytes:
    """Text as SQLite can take it: lone surrogates, which are not UTF-8, go in as bytes and come back as they were."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _unpack(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _pack_stats(stats: Mapping[str, Any] | None) -> str | None:
    return None if stats is None else json.dumps(stats)


def _title(content: str) -> str:
    """The first words of a message, on one line, without control characters."""
    start = content.strip()[: TITLE_CHARS * 4]
    words = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…"
