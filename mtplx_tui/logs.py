"""The log file: warnings, crashes, and what native code prints while the screen is up."""

import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 5_000_000
LINES_KEPT = 500
SOURCES = ("engine", "server", "mtplx_tui")


def open_log(path: Path) -> int:
    """A file descriptor that appends to the log; of /dev/null where the log can not be written.

    A log over MAX_BYTES becomes `NAME.old.log` first.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".old.log"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def log_to(path: Callable[[], Path]) -> None:
    """Send warnings to the log instead of the terminal; with the first one its path is asked for and it is opened."""
    # transformers prints its warnings past every handler, and they are about files that the user did not write
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = _LogHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _LogHandler(logging.FileHandler):
    def __init__(self, path: Callable[[], Path]) -> None:
        super().__init__(os.devnull, delay=True)
        self._path = path

    def _open(self):  # type: ignore[no-untyped-def]  # typeshed names the type of its own stream class only
        return os.fdopen(open_log(self._path()), "a", encoding="utf-8", errors="backslashreplace")


class LogTail(logging.Handler):
    """The last lines of this program's own log, for a screen to show; appended to from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-5s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record).split("\n")[0])

    def attach(self) -> None:
        """Hear the engine, the server and the screens: what the log file gets, at the levels that their owners set."""
        for name in SOURCES:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        for name in SOURCES:
            logging.getLogger(name).removeHandler(self)
