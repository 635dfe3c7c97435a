"""The thread that writes prefixes to the disk, so that nothing waits for it."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from engine import database
from engine.caches.blobs import Blobs, Entry, TooLargeError

log = logging.getLogger(__name__)
QUEUE_BYTES = 256 << 20  # that may wait to be written; one larger prefix may wait alone
_TOO_SLOW = "A prefix of %d tokens is not kept on disk: too much waits to be written already."


class Writer:
    """The thread that writes to the folder, in the order asked for."""

    def __init__(self, folder: Path, limit: int, build: str) -> None:
        self._folder = folder
        self._limit = limit
        self._build = build
        self._jobs: SimpleQueue[Callable[[Blobs], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}  # bytes of each key that is to be written
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="cache-writer", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[Blobs], object]) -> None:
        """Have something done that costs no memory while it waits."""
        if not self._failed:
            self._jobs.put(job)

    def write(self, entry: Entry, encode: Callable[[], list[bytes]]) -> None:
        """Have a file written, or let it go where too much waits already; `encode` is called now, or not at all."""
        if self._failed or entry.key in self._waiting:
            return
        with self._lock:
            full = sum(self._waiting.values())
        if full >= QUEUE_BYTES:
            log.warning(_TOO_SLOW, entry.end)
            return
        parts = encode()
        size = sum(map(len, parts))
        with self._lock:
            if self._waiting and sum(self._waiting.values()) + size > QUEUE_BYTES:
                log.warning(_TOO_SLOW, entry.end)
                return
            self._waiting[entry.key] = size
        self._jobs.put(partial(self._write, entry, parts))

    def close(self, timeout: float) -> None:
        """Finish what waits, for up to `timeout` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("%d prefixes were not written to %s in time.", len(self._waiting), self._folder)
            self._failed = True

    def _write(self, entry: Entry, parts: Sequence[bytes], blobs: Blobs) -> None:
        try:
            blobs.write(entry, parts)
        except TooLargeError as error:
            log.warning("A prefix of %d tokens is not kept on disk: %s.", entry.end, error)
        finally:
            with self._lock:
                del self._waiting[entry.key]

    def _run(self) -> None:
        blobs: Blobs | None = None
        try:
            blobs = Blobs(self._folder, self._limit)
            self._attempt(lambda blobs: blobs.tidy(self._build), blobs)
            while not self._failed and (job := self._jobs.get()) is not None:
                self._attempt(job, blobs)
        except Exception as error:  # whatever it is, requests must not notice
            self._fail(error)
        finally:
            if blobs is not None:
                blobs.close()

    def _attempt(self, job: Callable[[Blobs], object], blobs: Blobs) -> None:
        try:
            job(blobs)
        except sqlite3.OperationalError as error:
            if database.code(error) != sqlite3.SQLITE_BUSY:
                raise
            log.warning("Another program holds the cache in %s; something was not written.", self._folder)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        with self._lock:
            self._waiting.clear()
        while not self._jobs.empty():  # the bytes that wait are of no use any more
            self._jobs.get()
        log.warning("Prefixes are no longer kept in %s, only in memory: %s", self._folder, error)
