"""One command of ours in a process of its own, so that it measures the engine and not the screen that shows it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

LINES_KEPT = 200
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")

State = Literal["running", "done", "failed", "stopped"]


class Job:
    """A running `mtplx-tui ... --json`. Its progress lines are appended from a thread; everything may be read anywhere.

    The command gets a terminal for its progress, as it says nothing into a pipe.

    Attributes:
        lines: what it said last. result: the JSON that it printed, once it is done; else why it failed, in `error`.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)
        self.started = time.time()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.state: State = "running"
        self.result: dict[str, Any] | None = None
        self.error = ""
        self._began = time.monotonic()
        self._took: float | None = None
        screen, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mtplx_tui", *arguments, "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._reader = threading.Thread(target=self._read_progress, args=(screen,), name="job-progress", daemon=True)
        self._reader.start()
        self._waiter = threading.Thread(target=self._wait, name="job", daemon=True)
        self._waiter.start()

    @property
    def seconds(self) -> float:
        """How long it has run, or did."""
        return time.monotonic() - self._began if self._took is None else self._took

    def stop(self) -> None:
        """End it with all that it started. What it measured so far is lost."""
        if self.state == "running":
            self.state = "stopped"
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; False where that takes longer."""
        self._waiter.join(timeout)
        return not self._waiter.is_alive()

    def _read_progress(self, screen: int) -> None:
        text = ""
        with suppress(OSError):  # the other end is closed with the process
            while data := os.read(screen, 4096):
                *whole, text = (text + data.decode("utf-8", "replace")).replace("\r", "").split("\n")
                self.lines += [line for each in whole if (line := _CONTROL.sub("", each).strip())]
        os.close(screen)

    def _wait(self) -> None:
        out, _ = self._process.communicate()
        self._reader.join()
        self._took = time.monotonic() - self._began
        if self.state == "stopped":
            return
        try:
            printed = json.loads(out)
        except ValueError:
            printed = None
        if self._process.returncode == 0 and isinstance(printed, dict):
            self.result, self.state = printed, "done"
            return
        told = printed.get("error", {}).get("message") if isinstance(printed, dict) else None
        last = self.lines[-1] if self.lines else ""
        self.error = told or f"it ended with exit code {self._process.returncode}. {last}".strip()
        self.state = "failed"
