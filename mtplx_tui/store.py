"""Conversations, kept in one SQLite file.

The file is in WAL mode and each call is one transaction, so a killed process loses nothing that a call returned for,
and two programs may share it.
"""

import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtplx_tui.store_file import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
    is_damage,
    open_file,
    plain,
    set_aside,
    turn_to_open,
)
from mtplx_tui.store_rows import HEAD, MessageRow, Role, SessionFacts, SessionRow
from mtplx_tui.store_text import pack, pack_json, title, unpack, unpack_json

__all__ = [
    "HEAD",
    "MessageRow",
    "Role",
    "SessionFacts",
    "SessionRow",
    "Store",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreGoneError",
    "StoreLockedError",
    "StoreUnavailableError",
    "StoreVersionError",
]


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
            row = db.execute("INSERT INTO sessions (model, updated) VALUES (?, ?)", (pack(model), time.time()))
            return _row_id(row)

    def sessions(self, limit: int = 200) -> list[SessionRow]:
        """The conversations, the last used first."""
        query = """
            SELECT id, title, model, updated, (SELECT COUNT(*) FROM messages WHERE session_id = sessions.id)
            FROM sessions ORDER BY updated DESC, id DESC LIMIT ?
        """
        return [SessionRow(i, unpack(t), unpack(m), at, n) for i, t, m, at, n in self._rows(query, limit)]

    def facts(self, session_id: int) -> SessionFacts:
        """Raises StoreGoneError where there is no such session."""
        query = "SELECT id, title, model, system, options FROM sessions WHERE id = ?"
        for i, name, model, system, options in self._rows(query, session_id):
            return SessionFacts(i, unpack(name), unpack(model), unpack(system), unpack_json(options) or {})
        raise _no_session(session_id)

    def messages(self, session_id: int) -> list[MessageRow]:
        """The path that is shown, from its beginning; none for an id that does not exist."""
        query = """
            WITH RECURSIVE path (id, depth) AS (
                SELECT head, 0 FROM sessions WHERE id = ? AND head IS NOT NULL
                UNION ALL
                SELECT parent, depth + 1 FROM messages JOIN path USING (id) WHERE parent IS NOT NULL
            )
            SELECT m.id, m.role, m.content, m.reasoning, m.stats, m.finish_reason, m.parent,
                (SELECT COUNT(*) FROM messages AS s
                 WHERE s.session_id = m.session_id AND s.parent IS m.parent AND s.id <= m.id),
                (SELECT COUNT(*) FROM messages AS s WHERE s.session_id = m.session_id AND s.parent IS m.parent)
            FROM path JOIN messages AS m USING (id) ORDER BY depth DESC
        """
        return [
            MessageRow(i, role, unpack(content), unpack(reasoning), unpack_json(stats), finish, parent, place, places)
            for i, role, content, reasoning, stats, finish, parent, place, places in self._rows(query, session_id)
        ]

    def add_message(
        self,
        session_id: int,
        role: Role,
        content: str,
        reasoning: str = "",
        stats: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
        parent: int | None = HEAD,
    ) -> int:
        """Add a message behind `parent`, show the path that ends with it, and give its id.

        The first user message names the conversation. Raises StoreGoneError where there is no such session.
        """
        with self._write() as db:
            head = db.execute("SELECT head FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if head is None:
                raise _no_session(session_id)
            behind = head[0] if parent == HEAD else parent
            row = db.execute(
                "INSERT INTO messages (session_id, role, content, reasoning, stats, finish_reason, parent)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (session_id, role, pack(content), pack(reasoning), pack_json(stats), finish_reason, behind),
            )
            made = _row_id(row)
            db.execute("UPDATE sessions SET updated = ?, head = ? WHERE id = ?", (time.time(), made, session_id))
            if role == "user":
                name = pack(title(content))
                db.execute("UPDATE sessions SET title = ? WHERE id = ? AND title = ''", (name, session_id))
            return made

    def update_message(
        self,
        message_id: int,
        content: str,
        reasoning: str,
        stats: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> None:
        """Replace what a message holds, as an answer grows. Raises StoreGoneError where there is no such message."""
        with self._write() as db:
            changed = db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, stats = ?, finish_reason = ? WHERE id = ?",
                (pack(content), pack(reasoning), pack_json(stats), finish_reason, message_id),
            )
            if not changed.rowcount:
                raise _no_message(message_id)
            db.execute(
                "UPDATE sessions SET updated = ? WHERE id = (SELECT session_id FROM messages WHERE id = ?)",
                (time.time(), message_id),
            )

    def version(self, session_id: int, message_id: int, by: int) -> None:
        """Show the version before (-1) or after (1) a message, and what followed it last; nothing at the ends."""
        with self._write() as db:
            found = db.execute(
                "SELECT id FROM messages WHERE session_id = ? AND parent IS (SELECT parent FROM messages WHERE id = ?)"
                " ORDER BY id",
                (session_id, message_id),
            ).fetchall()
            ids = [i for (i,) in found]
            if message_id not in ids:
                raise _no_message(message_id)
            end = ids[min(max(ids.index(message_id) + by, 0), len(ids) - 1)]
            while (
                after := db.execute("SELECT MAX(id) FROM messages WHERE parent = ?", (end,)).fetchone()[0]
            ) is not None:
                end = after
            db.execute("UPDATE sessions SET head = ? WHERE id = ?", (end, session_id))

    def rename(self, session_id: int, name: str) -> None:
        """Give a conversation a title; an empty one goes back to its first question."""
        with self._write() as db:
            if not name.strip():
                first = "SELECT content FROM messages WHERE session_id = ? AND role = 'user' ORDER BY id LIMIT 1"
                name = "".join(unpack(content) for (content,) in db.execute(first, (session_id,)))
            self._changed(
                db.execute("UPDATE sessions SET title = ? WHERE id = ?", (pack(title(name)), session_id)), session_id
            )

    def describe(self, session_id: int, system: str, options: Mapping[str, Any]) -> None:
        """Set the system prompt and the sampling settings of a conversation."""
        with self._write() as db:
            query = "UPDATE sessions SET system = ?, options = ? WHERE id = ?"
            self._changed(db.execute(query, (pack(system), pack_json(options), session_id)), session_id)

    def delete(self, session_id: int) -> None:
        """Remove a conversation with all its messages."""
        with self._write() as db:
            db.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))
            self._changed(db.execute("DELETE FROM sessions WHERE id = ?", (session_id,)), session_id)

    def fork(self, session_id: int, message_id: int | None = None) -> int:
        """Copy the path that is shown, up to a message or whole, into a conversation of its own; gives its id."""
        facts, rows = self.facts(session_id), self.messages(session_id)
        if message_id is not None:
            place = next((place for place, row in enumerate(rows) if row.id == message_id), None)
            if place is None:
                raise StoreGoneError(f"There is no saved message number {message_id} in what is shown.")
            rows = rows[: place + 1]
        made = self.new_session(facts.model)
        self.describe(made, facts.system, facts.options)
        for row in rows:
            self.add_message(made, row.role, row.content, row.reasoning, row.stats, row.finish_reason)
        return made

    def search(self, text: str, limit: int = 200) -> list[SessionRow]:
        """The conversations with this text in their title or a message, the last used first; case is ignored."""
        wanted = "%" + re.sub("([%_!])", r"!\1", text) + "%"
        query = """
            SELECT id, title, model, updated, (SELECT COUNT(*) FROM messages WHERE session_id = sessions.id)
            FROM sessions WHERE title LIKE ? ESCAPE '!' OR EXISTS (
                SELECT 1 FROM messages WHERE session_id = sessions.id AND CAST(content AS TEXT) LIKE ? ESCAPE '!'
            ) ORDER BY updated DESC, id DESC LIMIT ?
        """
        return [
            SessionRow(i, unpack(t), unpack(m), at, n) for i, t, m, at, n in self._rows(query, wanted, wanted, limit)
        ]

    def _changed(self, cursor: sqlite3.Cursor, session_id: int) -> None:
        if not cursor.rowcount:
            raise _no_session(session_id)

    def _rows(self, query: str, *parameters: int | str) -> list[tuple[Any, ...]]:
        with self._lock, self._plain_errors():
            return self._db.execute(query, parameters).fetchall()

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


def _no_session(session_id: int) -> StoreError:
    return StoreGoneError(f"There is no saved chat number {session_id}.")


def _no_message(message_id: int) -> StoreError:
    return StoreGoneError(f"There is no saved message number {message_id}.")


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "only called after an INSERT"
    return cursor.lastrowid
