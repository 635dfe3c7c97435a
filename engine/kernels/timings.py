"""What was timed on this machine, kept in a file so that a model runs in the same way every time. No mlx."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Timings:
    """Seconds by name, of several ways to do the same thing.

    Args:
        machine: device and versions; what was timed on another machine does not count.
        file: where they are kept; None keeps them in memory only.
    """

    def __init__(self, machine: str, file: Path | None = None) -> None:
        self._machine = machine
        self._file = file
        self._known = self._read()

    def get(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What is known under a name, measured now where nothing is."""
        if name not in self._known:
            self._known[name] = measure()
            self._write()
        return self._known[name]

    def _read(self) -> dict[str, dict[str, float]]:
        if self._file is None:
            return {}
        try:
            kept: Any = json.loads(self._file.read_text(encoding="utf-8"))
            if kept["machine"] != self._machine:
                return {}
            return {str(name): {str(w): float(s) for w, s in ways.items()} for name, ways in kept["seconds"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            log.warning("%s can not be read (%r); what it held is timed again", self._file, error)
            return {}

    def _write(self) -> None:
        if self._file is None:
            return
        beside = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"machine": self._machine, "seconds": self._known}, indent=1), "utf-8")
            beside.replace(self._file)
        except OSError as error:
            log.warning("%s can not be written (%s)", self._file, error)
