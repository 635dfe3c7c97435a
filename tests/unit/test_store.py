"""Conversations are kept: what goes in comes out, and each way a disk can fail has a plain message."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtplx_tui.store import (
    Store,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def test_a_conversation_comes_back_after_reopening(path: Path) -> None:
    store = Store(path)
    session = store.new_session("demo-13m")
    store.add_message(session, "system", "Be brief.")
    store.add_message(session, "user", "What is 47 + 85?")
    answer = store.add_message(session, "assistant", "13")
    store.update_message(answer, "132", "40 + 80 = 120", {"steps": 7, "ttft_s": None}, "stop")
    store.close()

    again = Store(path)
    system, user, assistant = again.messages(session)
    assert (system.role, system.content, system.stats, system.finish_reason) == ("system", "Be brief.", None, None)
    assert (user.role, user.content) == ("user", "What is 47 + 85?")
    assert (assistant.id, assistant.content, assistant.reasoning) == (answer, "132", "40 + 80 = 120")
    assert (assistant.stats, assistant.finish_reason) == ({"steps": 7, "ttft_s": None}, "stop")
    again.close()


def test_sessions_are_listed_last_used_first_and_named_by_their_first_question(store: Store) -> None:
    old, new = store.new_session("demo-13m"), store.new_session("smollm2-135m")
    store.add_message(new, "user", "second")
    store.add_message(old, "user", "first\n\tquestion \x1b[31m" + "long " * 40)
    store.add_message(old, "user", "a later question")
    rows = store.sessions()
    assert [(row.id, row.model, row.messages) for row in rows] == [(old, "demo-13m", 2), (new, "smollm2-135m", 1)]
    assert rows[0].title.startswith("first question [31mlong long")
    assert rows[0].title.endswith("…")
    assert len(rows[0].title) <= 60
    assert rows[1].title == "second"
    assert [row.id for row in store.sessions(limit=1)] == [old]


def test_ids_that_do_not_exist_are_refused_and_nothing_is_written(store: Store) -> None:
    with pytest.raises(StoreError, match="no saved chat number 99"):
        store.add_message(99, "user", "lost?")
    with pytest.raises(StoreError, match="no saved message number 99"):
        store.update_message(99, "x", "")
    assert store.messages(99) == []
    assert store.sessions() == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=[])), st.text(st.characters(exclude_categories=[])))
def test_any_text_survives_nul_and_lone_surrogates_included(store: Store, content: str, reasoning: str) -> None:
    session = store.new_session("m" + reasoning)
    store.add_message(session, "user", content, reasoning)
    (row,) = store.messages(session)
    assert (row.content, row.reasoning) == (content, reasoning)
    assert store.sessions(limit=1)[0].model == "m" + reasoning


def test_nul_and_lone_surrogate_by_name(store: Store) -> None:
    session = store.new_session("m")
    store.add_message(session, "user", "a\x00b\ud83d c \x1b]52;c;x\x07")
    assert store.messages(session)[0].content == "a\x00b\ud83d c \x1b]52;c;x\x07"


def test_threads_share_one_store(store: Store) -> None:
    session = store.new_session("m")
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for i in range(25):
                message = store.add_message(session, "assistant", "")
                store.update_message(message, f"{name}{i}", "")
                store.messages(session)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    kept = [row.content for row in store.messages(session)]
    assert sorted(kept) == sorted(f"{name}{i}" for name in "abcd" for i in range(25))


def test_two_programs_may_have_the_same_file_open(store: Store, path: Path) -> None:
    other = Store(path)
    session = store.new_session("m")
    other.add_message(session, "user", "from the other one")
    assert [row.content for row in store.messages(session)] == ["from the other one"]
    other.close()


def test_only_the_owner_can_read_the_files(store: Store, path: Path) -> None:
    store.new_session("m")
    modes = {entry.name: entry.stat().st_mode & 0o077 for entry in path.parent.iterdir()}
    assert "sessions.db-wal" in modes
    assert set(modes.values()) == {0}


WRITER = """
import sys
from pathlib import Path
from mtplx_tui.store import Store
store = Store(Path(sys.argv[1]))
session = store.new_session("m")
message = store.add_message(session, "assistant", "")
for n in range(1, 1_000_000):
    store.update_message(message, "x" * n, "")
    print(n, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 40, 200])
def test_a_killed_program_loses_nothing_that_was_acknowledged(path: Path, acknowledged: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == acknowledged:
                break
        writer.kill()
    store = Store(path)
    assert store.notice is None
    (session,) = store.sessions()
    (row,) = store.messages(session.id)
    assert set(row.content) == {"x"}
    assert len(row.content) >= acknowledged
    store.close()


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def filled(path: Path) -> None:
    store = Store(path)
    session = store.new_session("m")
    for i in range(200):
        store.add_message(session, "user", f"message {i} " * 20)
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b"this is not a database, but long " * 99), id="text"),
        pytest.param(lambda path: overwrite(path, 0, b"\xff" * 100), id="header"),
        pytest.param(lambda path: overwrite(path, 4096, b"\xff" * 8192), id="pages"),
        pytest.param(lambda path: os.truncate(path, path.stat().st_size // 2), id="truncated"),
    ],
)
def test_a_damaged_file_is_set_aside_and_said(path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    filled(path)
    damage(path)
    broken = path.read_bytes()

    store = Store(path)
    assert store.notice is not None
    assert "damaged" in store.notice
    assert "set aside" in store.notice
    kept = [entry for entry in path.parent.iterdir() if ".damaged-" in entry.name and entry.suffix == ".db"]
    assert [entry.read_bytes() for entry in kept] == [broken]
    assert kept[0].name in store.notice
    assert store.sessions() == []
    store.add_message(store.new_session("m"), "user", "goes on")
    store.close()

    again = Store(path)
    assert again.notice is None
    assert len(again.sessions()) == 1
    again.close()


def test_two_damaged_files_in_a_second_are_both_kept(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for _ in range(3):
        path.write_bytes(b"junk" * 1000)
        Store(path).close()
    assert len([entry for entry in path.parent.iterdir() if ".damaged-" in entry.name]) == 3


def test_damage_while_open_is_named_and_the_next_start_recovers(store: Store, path: Path) -> None:
    session = store.new_session("m")
    for i in range(300):
        store.add_message(session, "user", f"message {i} " * 50)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    overwrite(path, 8192, b"\xff" * (path.stat().st_size - 8192))
    reader = sqlite3.connect(path)  # proves that the damage is real for any reader
    with pytest.raises(sqlite3.DatabaseError):
        reader.execute("SELECT * FROM messages").fetchall()
    reader.close()
    store._db.execute("PRAGMA shrink_memory")  # drop the pages that this connection still holds in memory
    with pytest.raises(StoreCorruptError, match="set aside, not deleted"):
        store.messages(session)
    store.close()
    again = Store(path)
    assert again.notice is not None
    again.close()


def test_a_locked_file_is_said_within_seconds_and_works_again_after(store: Store, path: Path) -> None:
    session = store.new_session("m")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreLockedError, match=r"holds .* locked"):
        store.add_message(session, "user", "waits")
    holder.execute("ROLLBACK")
    holder.close()
    store.add_message(session, "user", "now")
    assert [row.content for row in store.messages(session)] == ["now"]


def test_a_full_disk_is_said_and_what_was_saved_stays(store: Store) -> None:
    session = store.new_session("m")
    message = store.add_message(session, "assistant", "the part that fitted")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")  # SQLite's own way to have a disk of that size
    with pytest.raises(StoreFullError, match="disk is full"):
        store.update_message(message, "x" * 200_000, "")
    assert store.messages(session)[0].content == "the part that fitted"
    store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    store.update_message(message, "x" * 200_000, "")
    assert len(store.messages(session)[0].content) == 200_000


def test_a_newer_programs_file_is_left_alone(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match=r"newer mtplx-tui \(format 7"):
        Store(path)
    assert path.read_bytes() == before


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailableError, match="file"):
        Store(tmp_path / "file" / "sessions.db")
    (tmp_path / "sessions.db").mkdir()
    with pytest.raises(StoreUnavailableError, match="Is a directory"):
        Store(tmp_path / "sessions.db")


def test_calls_after_close_are_refused_plainly(path: Path) -> None:
    store = Store(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.sessions()
    with pytest.raises(StoreError, match="closed"):
        store.new_session("m")


class TestVersions:
    """A conversation is a tree, of which one path is shown."""

    def test_an_answer_has_versions_and_what_followed_each_comes_back_with_it(self, store: Store) -> None:
        session = store.new_session("m")
        question = store.add_message(session, "user", "q1")
        first = store.add_message(session, "assistant", "a1")
        store.add_message(session, "user", "q2")
        second = store.add_message(session, "assistant", "another a1", parent=question)
        assert [row.content for row in store.messages(session)] == ["q1", "another a1"]
        answer = store.messages(session)[1]
        assert (answer.version, answer.versions, answer.parent) == (2, 2, question)
        store.version(session, second, -1)
        assert [row.content for row in store.messages(session)] == ["q1", "a1", "q2"]
        store.version(session, first, -1)
        assert [row.content for row in store.messages(session)] == ["q1", "a1", "q2"], "there is none before the first"
        store.version(session, first, 1)
        assert [row.content for row in store.messages(session)] == ["q1", "another a1"]

    def test_a_first_question_can_be_asked_in_another_way(self, store: Store) -> None:
        session = store.new_session("m")
        store.add_message(session, "user", "q1")
        other = store.add_message(session, "user", "q1, better", parent=None)
        (row,) = store.messages(session)
        assert (row.id, row.version, row.versions, row.parent) == (other, 2, 2, None)

    def test_versions_of_other_sessions_are_not_counted(self, store: Store) -> None:
        one, other = store.new_session("m"), store.new_session("m")
        store.add_message(one, "user", "q")
        store.add_message(other, "user", "q")
        assert store.messages(one)[0].versions == 1

    def test_a_fork_is_a_conversation_of_its_own(self, store: Store) -> None:
        session = store.new_session("m")
        store.describe(session, "Be brief.", {"temperature": 0.2})
        store.add_message(session, "user", "q1")
        answer = store.add_message(session, "assistant", "a1", "hm", {"steps": 3}, "stop")
        store.add_message(session, "user", "q2")
        fork = store.fork(session, answer)
        store.add_message(fork, "user", "q3")
        assert [row.content for row in store.messages(fork)] == ["q1", "a1", "q3"]
        assert [row.content for row in store.messages(session)] == ["q1", "a1", "q2"]
        copied = store.messages(fork)[1]
        assert (copied.reasoning, copied.stats, copied.finish_reason) == ("hm", {"steps": 3}, "stop")
        assert (store.facts(fork).system, store.facts(fork).options) == ("Be brief.", {"temperature": 0.2})
        with pytest.raises(StoreError, match="no saved message"):
            store.fork(session, 999)

    def test_a_file_of_the_first_format_comes_over_whole(self, path: Path) -> None:
        path.parent.mkdir()
        with sqlite3.connect(path) as db:
            db.executescript(FIRST_FORMAT)
        store = Store(path)
        assert [[row.content for row in store.messages(session)] for session in (1, 2, 3)] == [
            ["a", "b"],
            ["c", "d"],
            [],
        ]
        assert store.add_message(1, "user", "e") > 0
        assert [row.content for row in store.messages(1)] == ["a", "b", "e"]
        store.close()


FIRST_FORMAT = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, title TEXT NOT NULL DEFAULT '', updated REAL NOT NULL
);
CREATE INDEX sessions_by_time ON sessions (updated);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id INTEGER NOT NULL REFERENCES sessions (id),
    role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL, stats TEXT, finish_reason TEXT
);
CREATE INDEX messages_by_session ON messages (session_id, id);
INSERT INTO sessions (id, model, title, updated) VALUES (1, 'm', 'a', 1.0), (2, 'm', 'c', 2.0), (3, 'm', '', 3.0);
INSERT INTO messages (session_id, role, content, reasoning) VALUES
    (1, 'user', 'a', ''), (2, 'user', 'c', ''), (1, 'assistant', 'b', ''), (2, 'assistant', 'd', '');
PRAGMA user_version = 1;
"""


def test_a_title_can_be_set_and_taken_back(store: Store) -> None:
    session = store.new_session("m")
    store.add_message(session, "user", "first words")
    store.rename(session, "my\nname \x1b[2J")
    assert store.sessions()[0].title == "my name [2J"
    store.rename(session, "  ")
    assert store.sessions()[0].title == "first words"


def test_a_deleted_conversation_is_gone_with_its_messages(store: Store) -> None:
    gone, kept = store.new_session("m"), store.new_session("m")
    for session in (gone, kept):
        store.add_message(session, "user", "q")
    store.delete(gone)
    assert [row.id for row in store.sessions()] == [kept]
    assert store.messages(gone) == []
    for call in (store.facts, store.delete, store.fork):
        with pytest.raises(StoreError, match="no saved chat"):
            call(gone)


@pytest.mark.parametrize("wanted", ["100%", "a_b", "Wörter", "!x", "lone", "%"])
def test_search_finds_words_in_any_message_as_they_are_written(store: Store, wanted: str) -> None:
    texts = ["is it 100% sure?", "a_b", "axb", "viele Wörter", "!x", "lone \ud83d surrogate"]
    for text in texts:
        session = store.new_session("m")
        store.add_message(session, "user", "the question")
        store.add_message(session, "assistant", text)
    found = store.search(wanted)
    assert [store.messages(row.id)[1].content for row in found] == [text for text in texts if wanted in text]
