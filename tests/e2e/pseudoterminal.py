"""A terminal for programs under test: a real pty, with a screen that can be read and modes that can be checked."""

import os
import re
import signal
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte
import pytest

MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
KITTY = re.compile(rb"\x1b\[(?:>\d*|<)u")

AT_START = {7, 25}
"""Private modes that are on in a fresh terminal: long lines wrap, the cursor shows."""


class Pty:
    """A program in a pty. What it writes is read only inside `wait_for` and `ended`."""

    def __init__(self, argv: list[str], home: Path, size: tuple[int, int] = (40, 120)) -> None:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "TMUX", "SSH_", "COLUMNS", "LINES"))
        }
        env |= {"HOME": str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        self.child = pexpect.spawn(argv[0], argv[1:], env=env, dimensions=size, timeout=30)
        self.before = termios.tcgetattr(self.child.child_fd)
        self.raw = b""
        self._screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self._screen)

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def unwrapped(self) -> str:
        """The screen as one line, in which a message that the terminal wrapped is whole."""
        return "".join(self._screen.display)

    @property
    def modes(self) -> set[int]:
        """Private modes now on."""
        modes = set(AT_START)
        for numbers, switch in MODE.findall(self.raw):
            for number in numbers.split(b";"):
                (modes.add if switch == b"h" else modes.discard)(int(number))
        return modes

    @property
    def kitty(self) -> int:
        """How deep the stack of keyboard modes is; a pop of an empty stack does nothing."""
        depth = 0
        for match in KITTY.findall(self.raw):
            depth = depth + 1 if b">" in match else max(0, depth - 1)
        return depth

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def wait_for(self, what: str | Callable[[], bool], timeout: float = 30.0) -> None:
        """Read until a text is on the screen or a condition holds; fails with the screen in the message."""
        holds = (lambda: what in self.text) if isinstance(what, str) else what
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                pytest.fail(f"{what!r} did not come in {timeout} s; the screen:\n{self.text}")
            self._read(0.05)

    def ended(self, timeout: float = 15.0) -> int:
        """Wait for the end; gives the exit code as a shell shows it."""
        deadline = time.monotonic() + timeout
        while self.child.isalive():
            if time.monotonic() > deadline:
                pytest.fail(f"still running after {timeout} s; the screen:\n{self.text}")
            self._read(0.05)
        while self._read(0.2):
            pass
        return self.child.exitstatus if self.child.exitstatus is not None else 128 + self.child.signalstatus

    def assert_sane(self) -> None:
        """The terminal is as it was before the program."""
        assert self.modes == AT_START, f"private modes differ: {self.modes ^ AT_START}"
        assert self.kitty == 0
        assert termios.tcgetattr(self.child.child_fd) == self.before

    def hang_up(self) -> None:
        """Close the terminal, as when its window is closed; the descriptor's number stays taken for pexpect."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self.child.child_fd)
        os.close(null)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.child.close(force=True)

    def _read(self, timeout: float) -> bool:
        try:
            data = self.child.read_nonblocking(65536, timeout)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.raw += data
        self._stream.feed(data)
        return True


def children(pid: int) -> list[int]:
    """Processes that a process started and that still run."""
    listing = pexpect.run(f"ps -o pid= --ppid {pid}" if sys.platform == "linux" else f"pgrep -P {pid}")
    return [int(word) for word in listing.split()]


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    return pexpect.run(f"ps -o stat= -p {pid}").strip()[:1] not in (b"", b"Z")


def wait_until(holds: Callable[[], bool], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not so after {timeout} s"
        time.sleep(0.05)
