"""The child's side of guard.py: a terminal of its own, native prints in the log, and an end that always comes."""

import errno
import faulthandler
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mtplx_tui import exit_codes
from mtplx_tui.guard import FORWARDED
from mtplx_tui.logs import log_to, open_log
from mtplx_tui.terminal import Terminal

STOP_SECONDS = 4.0


def enter(life: int, log: Path) -> None:
    """Keep the terminal for the screen alone and send everything else that is printed to the log.

    Textual draws to `sys.__stderr__` and measures `sys.__stdout__`; both become a private copy of the terminal, while
    file descriptors 1 and 2, which Metal, tokenizers and download bars write to, become the log.
    """
    screen = io.BufferedWriter(_Screen(os.dup(1), "w"))
    terminal = io.TextIOWrapper(screen, encoding=sys.stdout.encoding, errors="replace", newline="")
    sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc]
    log_fd = open_log(log)
    for fd in (1, 2):
        os.dup2(log_fd, fd)
    os.close(log_fd)
    faulthandler.enable(2)
    log_to(lambda: log)
    threading.Thread(target=_end_with_guard, args=(life,), name="guard-watch", daemon=True).start()


def stop_on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop` in the main thread on SIGHUP, SIGINT or SIGTERM, and end the process soon after in any case."""
    assert sys.__stdout__ is not None, "set by enter()"
    terminal = Terminal.remember(keys=0, screen=sys.__stdout__.fileno())

    def handle(number: int, _frame: FrameType | None) -> None:
        # without a guard the shell takes the terminal back, and restoring its modes from the background would stop us
        for background in (signal.SIGTTOU, signal.SIGTTIN):
            signal.signal(background, signal.SIG_IGN)
        deadline = threading.Timer(STOP_SECONDS, _give_up, (terminal, exit_codes.SIGNALLED + number))
        deadline.daemon = True
        deadline.start()
        stop(number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


class _Screen(io.FileIO):
    """A terminal that may go away: writing to one that has is no error, or Textual's writer would die and block it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENXIO, errno.EPIPE):
                raise
            return len(data)


def _end_with_guard(life: int) -> None:
    os.read(life, 1)  # nobody writes: this returns when the guard is gone
    os.kill(os.getpid(), signal.SIGTERM)


def _give_up(terminal: Terminal, code: int) -> None:
    terminal.restore()
    os._exit(code)
