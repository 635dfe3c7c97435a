"""Runs the screen in a child process, so that whatever ends the child leaves the terminal as it was.

The engine runs native code in the screen's process. When that aborts, no Python runs any more and the terminal would
stay in the alternate screen with the mouse on and the cursor off. This process is small, never imports MLX or Textual,
and outlives the child; the child ends when this process does (see guarded.py).
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from mtplx_tui import exit_codes
from mtplx_tui.terminal import Terminal

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
STOP_SECONDS = 6
"""How long the child may take to end after a forwarded signal. Its own limit (guarded.py) is shorter."""

KEPT = "Your chats are kept; start mtplx-tui again to go on."


def run(argv: Sequence[str], log: Path) -> int:
    """Run a full-screen program to its end and give the exit code, 128 + n where signal n ended it.

    The program gets one more argument, the number of a pipe's end that closes when this process ends, and starts with
    FORWARDED blocked until it can handle them.
    Standard input and output must be terminals. `log` is only named to the user.
    """
    terminal = Terminal.remember(keys=0, screen=1)
    terminal.save_cursor()
    life, ours = os.pipe()
    os.set_inheritable(life, True)
    # until the handlers stand, here and in the child, signals wait
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    pid = os.posix_spawn(argv[0], [*argv, str(life)], os.environ, setsigmask=FORWARDED)
    os.close(life)
    asked: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        _send(pid, number)
        signal.alarm(STOP_SECONDS)

    def overdue(_number: int, _frame: FrameType | None) -> None:
        _send(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, overdue)
    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    os.close(ours)
    return _finish(terminal, os.waitstatus_to_exitcode(status), asked, log)


def _finish(terminal: Terminal, code: int, asked: list[int], log: Path) -> int:
    """Leave the terminal sane, say what the user could not see, and give the shell's exit code."""
    if code == exit_codes.INTERNAL:
        _say(f"mtplx-tui met an error of its own and had to stop. {KEPT} Details: {log}")
    if 0 <= code < exit_codes.SIGNALLED:
        return code
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the shell may have put us in the background by now
    terminal.restore()
    if asked:
        return exit_codes.SIGNALLED + asked[0]
    if code == -signal.SIGKILL:
        _say(f"mtplx-tui was killed, by hand or because memory ran out. {KEPT}")
    elif code < 0:
        name = signal.Signals(-code).name
        _say(f"mtplx-tui crashed in native code ({name}). {KEPT} Details: {log}")
    return exit_codes.SIGNALLED - code if code < 0 else code


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _say(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
