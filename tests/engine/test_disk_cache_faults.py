"""Kills, full disks, damage and company: what can happen to the folder of the cache, and that nothing comes of it."""

import logging
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prefix_writer import MODEL, ROOT, conversation, raw, read, stretch, write

from engine.caches import index_file, writer
from engine.caches.blobs import Blobs, Entry, GoneError, UnusableError
from engine.caches.disk import Disk, open_disk
from engine.caches.stretch import decode

LIMIT = 1 << 30
WRITER = str(Path(__file__).with_name("prefix_writer.py"))


def opened(folder: Path, limit: int = LIMIT, root: str = ROOT) -> Disk:
    disk = open_disk(folder, limit, MODEL, lambda: root)
    assert disk is not None
    return disk


def kept(folder: Path, *prompts: tuple[int, ...], limit: int = LIMIT) -> list[str]:
    """Write prompts and close; gives their keys."""
    keys: list[str] = []
    for prompt in prompts:
        disk = opened(folder, limit)
        keys += write(disk, prompt)
        disk.close(60.0)
    return keys


def found(folder: Path, prompt: tuple[int, ...], limit: int = LIMIT) -> int:
    disk = opened(folder, limit)
    tokens = read(disk, prompt)
    disk.close(60.0)
    return tokens


def files(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in (folder / "blobs").iterdir()}


def assert_sound(folder: Path) -> None:
    """Each file has a row and each row its file, whole."""
    store = Blobs(folder)
    entries = store.entries()
    for entry in entries:
        store.check(entry)
    store.close()
    assert files(folder) == {f"{entry.key}.safetensors": entry.nbytes for entry in entries}


def start(folder: Path, limit: int, seed: int, count: int, **options: Callable[[], None]) -> "subprocess.Popen[str]":
    argv = [sys.executable, WRITER, str(folder), str(limit), str(seed), str(count)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert child.stdout is not None
    assert child.stdout.readline() == "runs\n"
    return child


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this system lets no file system be mounted")
    yield place
    subprocess.run(["umount", place], check=True)


def test_every_type_comes_back_bit_by_bit_and_only_the_user_can_read_it(tmp_path: Path) -> None:
    (key, *_) = kept(tmp_path / "cache", conversation(1))
    disk = opened(tmp_path / "cache")
    assert raw(disk.load(key)) == raw(stretch(key))
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    disk.close(60.0)


def test_a_killed_writer_leaves_only_whole_prefixes(tmp_path: Path) -> None:
    draw = random.Random(5)
    for seed in range(5):
        child = start(tmp_path, LIMIT, seed, 10_000)
        time.sleep(draw.uniform(0.0, 0.15))  # the moment does not matter, only that it varies
        child.send_signal(signal.SIGKILL)
        child.communicate()
        for number in range(30):
            found(tmp_path, conversation(number))  # compares what it reads
        assert_sound(tmp_path)
    assert files(tmp_path), "nothing was written before the kills"


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "a flipped bit in the length": lambda data: flip(data, 1),
    "a flipped bit in the header": lambda data: flip(data, 40),
    "a flipped bit in the last value": lambda data: flip(data, len(data) - 1),
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "too long": lambda data: data + b"\0",
    "other bytes of the same length": lambda data: os.urandom(len(data)),
    "gone": lambda data: None,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_a_miss_that_says_so_and_is_mended_by_the_next_reading(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = conversation(1)
    middle = kept(tmp_path, prompt)[1]
    disk = opened(tmp_path)  # and the file changes under an open store
    tidied = threading.Event()
    disk._writer.do(lambda blobs: tidied.set())
    assert tidied.wait(60.0)
    file = tmp_path / "blobs" / f"{middle}.safetensors"
    damaged = DAMAGE[name](file.read_bytes())
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)
    with pytest.raises(UnusableError, match="removed" if damaged is None else "damaged"):
        disk.load(middle)
    assert (middle in caplog.text) == (damaged is not None)
    assert read(disk, prompt) == 40, "what comes before the damage is used, and the rest not asked for again"
    disk.offer(middle, *kept_args(prompt, 1), stretch(middle), disk.root)
    disk.close(60.0)
    assert_sound(tmp_path)
    assert found(tmp_path, prompt) == 120


def kept_args(prompt: tuple[int, ...], place: int) -> tuple[str, int, int]:
    from engine.caches import address

    return address.after(ROOT, address.packed(prompt[:40])) if place == 1 else ROOT, 40 * place, 40 * place + 40


@pytest.mark.parametrize("cut", [None, 0, 50, 5000])
def test_a_damaged_index_empties_the_cache_and_no_more(cut: int | None, tmp_path: Path) -> None:
    kept(tmp_path, *map(conversation, range(10)))
    index = tmp_path / "index.db"
    data = index.read_bytes()
    index.write_bytes(b"garbage " * 1000 if cut is None else data[:cut])
    assert found(tmp_path, conversation(1)) == 0
    assert files(tmp_path) == {}
    kept(tmp_path, conversation(1))
    assert found(tmp_path, conversation(1)) == 120
    assert_sound(tmp_path)


def test_an_index_of_another_version_empties_the_cache(tmp_path: Path) -> None:
    kept(tmp_path, conversation(1))
    db = sqlite3.connect(tmp_path / "index.db")
    db.execute("PRAGMA user_version = 7")
    db.close()
    assert found(tmp_path, conversation(1)) == 0
    assert files(tmp_path) == {}


def test_leftovers_are_removed_at_the_start_but_not_what_another_process_is_writing(tmp_path: Path) -> None:
    import fcntl

    kept(tmp_path, conversation(1))
    for name in ("a.safetensors", "b.tmp", "readme.txt", "c.tmp"):
        (tmp_path / "blobs" / name).write_bytes(b"left behind")
    with (tmp_path / "blobs" / "c.tmp").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert found(tmp_path, conversation(1)) == 120
        assert {name for name in files(tmp_path) if not name.endswith(".safetensors")} == {"c.tmp"}
    assert found(tmp_path, conversation(1)) == 120
    assert_sound(tmp_path)


def test_a_lowered_limit_holds_from_the_next_start_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    kept(tmp_path, *map(conversation, range(10)))
    size = sum(files(tmp_path).values()) // 21  # the first stretch is shared
    for number in (0, 3):
        assert found(tmp_path, conversation(number)) == 120
    opened(tmp_path, limit=9 * size).close(60.0)
    assert sum(files(tmp_path).values()) <= 9 * size
    kept_tokens = [found(tmp_path, conversation(number)) for number in range(10)]
    assert kept_tokens == [120, 40, 40, 120, 40, 40, 40, 40, 120, 120], "read last, or written last, and the beginning"
    opened(tmp_path, limit=0).close(60.0)
    assert files(tmp_path) == {}


def test_the_limit_holds_at_each_write_and_beginnings_outlive_ends(tmp_path: Path) -> None:
    size = sum(files(tmp_path).values()) if kept(tmp_path, conversation(0)) else 0
    for number in range(1, 12):
        kept(tmp_path, conversation(number), limit=2 * size)
        assert sum(files(tmp_path).values()) <= 2 * size
        assert found(tmp_path, conversation(number), limit=2 * size) == 120
    assert_sound(tmp_path)


def test_a_conversation_above_the_limit_is_kept_as_far_as_it_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = max(files(tmp_path).values()) if kept(tmp_path, conversation(0)) else 0
    long = conversation(1, stretches=6)
    kept(tmp_path, long, limit=4 * size)
    assert found(tmp_path, long, limit=4 * size) == 160
    assert "the limit is" in caplog.text


def test_what_another_build_or_other_weights_left_is_not_used_and_goes_first(tmp_path: Path) -> None:
    old = Blobs(tmp_path, LIMIT)
    parts = [bytes(3000)]
    old.write(Entry("cd" * 20, "ef" * 20, "ef" * 20, MODEL, "format 0, an old one", 0, 40), parts)
    old.close()
    disk = opened(tmp_path)
    assert disk.why_nothing(disk.root) == "what is on disk was kept by another version (format 0, an old one)"
    disk.close(60.0)
    kept(tmp_path, conversation(1))
    size = sum(files(tmp_path).values())
    assert found(tmp_path, conversation(1), limit=size - 1) == 120
    assert len(files(tmp_path)) == 3
    disk = opened(tmp_path, root="12" * 20)
    assert disk.why_nothing(disk.root) == "what is on disk was kept for other weights, settings or keys of this model"
    disk.close(60.0)


def test_two_processes_share_a_folder_too_small_for_both(tmp_path: Path) -> None:
    limit = 20 * 120_000
    children = [start(tmp_path, limit, seed, 150) for seed in (1, 2)]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, err) == (0, "")
        assert int(out.removeprefix("read ")) > 0
    assert 0 < sum(files(tmp_path).values()) <= limit
    assert_sound(tmp_path)


def test_a_file_that_is_removed_after_its_check_is_gone_and_not_broken(tmp_path: Path) -> None:
    (key, *_) = kept(tmp_path, conversation(1))
    store = Blobs(tmp_path)
    file = store.checked(key)
    store.clear()
    store.close()
    with pytest.raises(GoneError, match="removed meanwhile"):
        decode(file, key)


def test_a_file_that_another_process_removed_is_a_miss(tmp_path: Path) -> None:
    keys = kept(tmp_path, conversation(1))
    disk, other = opened(tmp_path), Blobs(tmp_path)
    assert read(disk, conversation(1)) == 120
    other.clear()
    assert read(disk, conversation(1)) == 0
    with pytest.raises(UnusableError, match="removed meanwhile"):
        disk.load(keys[0])
    write(disk, conversation(1))
    disk.close(60.0)
    other.close()
    assert found(tmp_path, conversation(1)) == 120


def test_a_full_disk_is_said_once_and_leaves_what_was_kept(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_disk / "cache"
    kept(folder, conversation(0))
    disk = opened(folder)
    for number in range(1, 200):
        write(disk, conversation(number))
    disk.close(60.0)
    assert sum("no longer kept" in record.message for record in caplog.records) == 1
    assert "No space left on device" in caplog.text or "disk is full" in caplog.text
    assert read_without_writing(folder, conversation(0)) == 120
    with suppress(OSError), (small_disk / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    assert open_disk(small_disk / "new", LIMIT, MODEL, lambda: ROOT) is None
    (small_disk / "filler").unlink()
    assert found(folder, conversation(0)) == 120
    assert_sound(folder)


def read_without_writing(folder: Path, prompt: tuple[int, ...]) -> int:
    disk = opened(folder)
    try:
        return read(disk, prompt)
    finally:
        disk.close(60.0)


def test_a_limit_on_file_sizes_stops_the_writing_alone(tmp_path: Path) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))

    kept(tmp_path, conversation(0))
    child = start(tmp_path, LIMIT, 1, 5, preexec_fn=no_large_files)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert err.count("no longer kept") == 1
    assert "File too large" in err or "disk I/O error" in err
    assert found(tmp_path, conversation(0)) == 120
    assert_sound(tmp_path)


def test_a_folder_that_can_not_be_used_leaves_the_prefixes_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    assert open_disk(tmp_path / "file" / "cache", LIMIT, MODEL, lambda: ROOT) is None
    assert "in memory only" in caplog.text
    assert "Not a directory" in caplog.text


def test_a_file_system_that_became_read_only_is_left_alone(small_disk: Path) -> None:
    kept(small_disk / "cache", conversation(0))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert open_disk(small_disk / "cache", LIMIT, MODEL, lambda: ROOT) is None


def test_what_the_disk_is_too_slow_for_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, conversation(0))
    monkeypatch.setattr(writer, "QUEUE_BYTES", 1)
    holder = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")  # nobody can write now
    disk = opened(tmp_path)
    write(disk, conversation(1))
    assert "too much waits" in caplog.text
    holder.execute("ROLLBACK")
    disk.close(60.0)
    holder.close()
    assert found(tmp_path, conversation(1)) == 80, "the shared beginning and the one that was first in the queue"


def test_a_locked_index_costs_a_prefix_and_not_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_file, "BUSY_SECONDS", 0.1)
    caplog.set_level(logging.WARNING)
    kept(tmp_path, conversation(0))
    holder = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    disk = opened(tmp_path)
    assert read(disk, conversation(0)) == 120, "readers do not wait for writers"
    disk.close(10.0)
    assert "Another program holds the cache" in caplog.text
    holder.execute("ROLLBACK")
    holder.close()
    assert found(tmp_path, conversation(0)) == 120
