"""Prefixes that outlive the program: what the bank keeps in memory, written through to a folder and read back.

The engine thread looks up and reads; it turns arrays into bytes as well, since no array may be touched by another
thread, and copying takes a thousandth of the time that reading the prompt took. One thread of its own writes. When it
can not keep up, the newest prefix is let go: that is a miss later, where waiting would be a stall now. Nothing that
goes wrong here reaches a request: a file that can not be used is a miss, and where the folder can not be written to,
the prefixes stay in memory.
"""

import logging
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.caches import address
from engine.caches.blobs import Blobs, Entry, GoneError, UnusableError
from engine.caches.stretch import Stretch, decode, encode
from engine.caches.writer import Writer

log = logging.getLogger(__name__)
_UNREADABLE = "the folder of the cache can not be read"


class Disk:
    """One model's prefixes in a folder, for the engine thread. Use `open_disk`."""

    def __init__(self, folder: Path, limit: int, model: str, root: str) -> None:
        self.folder = folder
        self.root = root
        self._model = model
        self._build = address.build()
        self._refused: set[str] = set()  # keys of files that could not be used
        self._blobs: Blobs | None = Blobs(folder)
        self._writer = Writer(folder, limit, self._build)

    def continuing(self, parent: str, tokens: memoryview, start: int) -> list[tuple[str, int]]:
        """(key, end) of what continues the prefix of a prompt's first `start` tokens; `tokens` are all, packed."""
        if self._blobs is None:
            return []
        try:
            kept = self._blobs.continuing(parent)
        except sqlite3.Error as error:
            self._stop_reading(error)
            return []
        found = []
        for key, begin, end in kept:
            if begin == start and end * address.WIDTH <= len(tokens) and key not in self._refused:
                stretch = tokens[start * address.WIDTH : end * address.WIDTH]
                if address.after(parent, stretch) == key:
                    found.append((key, end))
        return found

    def load(self, key: str) -> Stretch:
        """Read a file. Raises UnusableError with the reason; the file is removed then."""
        if self._blobs is None:
            raise UnusableError(_UNREADABLE)
        try:
            return decode(self._blobs.checked(key), key)
        except sqlite3.Error as error:
            self._stop_reading(error)
            raise UnusableError(_UNREADABLE) from error
        except GoneError as error:
            log.info("A cached prefix is not used: %s (%s).", error, key)
            self._refuse(key)
            raise
        except UnusableError as error:
            log.warning("A cached prefix is removed: %s (%s).", error, key)
            self._refuse(key)
            raise

    def _refuse(self, key: str) -> None:
        self._refused.add(key)
        self._writer.do(lambda blobs: blobs.drop_broken(key))

    def why_nothing(self, root: str) -> str | None:
        """A reason for finding nothing at all behind the empty prefix `root`, in words; None where the folder has
        nothing of this model."""
        if self._blobs is None:
            return None
        try:
            own, others = self._blobs.continuing(root), self._blobs.other_builds(self._model, root)
        except sqlite3.Error as error:
            self._stop_reading(error)
            return None
        if own:
            return "nothing cached begins like this prompt"
        if self._build in others:
            return "what is on disk was kept for other weights, settings or keys of this model"
        return f"what is on disk was kept by another version ({others[0]})" if others else None

    def offer(self, key: str, parent: str, start: int, end: int, stretch: Stretch, root: str) -> None:
        """Have a stretch written, unless it is there already. Its arrays must have been evaluated.

        `root` is the address of the empty prefix that it goes back to.
        """
        if self._blobs is None:
            return
        try:
            there = self._blobs.has(key) and key not in self._refused  # the writer removes such a one first
        except sqlite3.Error as error:
            self._stop_reading(error)
            return
        self._refused.discard(key)
        if not there:
            entry = Entry(key, parent, root, self._model, self._build, start, end)
            self._writer.write(entry, partial(encode, stretch, key))

    def touch(self, key: str) -> None:
        """A prefix, and all that it continues, is used now."""
        self._writer.do(lambda blobs: blobs.touch(key))

    def clear(self) -> None:
        """Have everything in the folder removed, what waits to be written included."""
        self._writer.do(lambda blobs: blobs.clear())

    def close(self, timeout: float) -> None:
        """Write what waits, for up to `timeout` seconds; what is left then is lost, and nothing else."""
        self._writer.close(timeout)
        if self._blobs is not None:
            self._blobs.close()
            self._blobs = None

    def _stop_reading(self, error: Exception) -> None:
        log.warning("The cache on disk can not be read and is left alone until the next start: %s", error)
        assert self._blobs is not None
        self._blobs.close()
        self._blobs = None


def open_disk(folder: Path, limit: int, model: str, root: Callable[[], str]) -> Disk | None:
    """The prefixes of a model in a folder; None, and a line in the log, where it can not be used.

    `root` gives the address of the model's empty prefix.
    """
    try:
        return Disk(folder, limit, model, root())
    except (OSError, sqlite3.Error, ValueError) as error:
        log.warning("Prefixes are kept in memory only, since %s can not be used: %s", folder, error)
        return None
