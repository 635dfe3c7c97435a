"""The log file: warnings, crashes, and what native code prints while the screen is up."""

import logging
import os
from pathlib import Path

MAX_BYTES = 5_000_000


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


def log_to(path: Path) -> None:
    """Send warnings to the log instead of the terminal; the file is opened with the first one."""
    # transformers prints its warnings past every handler, and they are about files that the user did not write
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = _LogHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _LogHandler(logging.FileHandler):
    def _open(self):  # type: ignore[no-untyped-def]  # typeshed names the type of its own stream class only
        return os.fdopen(open_log(Path(self.baseFilename)), "a", encoding="utf-8", errors="backslashreplace")
