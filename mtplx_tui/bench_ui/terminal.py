"""A program in a pseudo-terminal that is read as fast as one likes, or not at all, with a socket to the program."""

import json
import os
import pty
import select
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

from engine.errors import EngineError

COLUMNS, ROWS = 120, 40
SYNC_QUERY, SYNC_REPLY = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
PATIENCE_S = 60.0
LEAVE, LEAVE_S = "\x11", 5.0
TAIL = 4000
BURST_S = 0.02
"""How long a throttled line may have been unused and still make up for it."""


class BenchFailedError(EngineError):
    """The measurement could not be made; the text says why and can be shown to a user."""


class Terminal:
    """A child process under a terminal of COLUMNS by ROWS. It draws into a void as long as nobody pumps.

    Args:
        rate: bytes a second that the terminal takes; None for all it can. Set it again at any time; 0 stalls.

    Attributes:
        answers: whether it says what it can when it is asked.
        taken: bytes read so far. fresh: what was drawn since `mark`. read_at, begun: when something was read last, and
            when the program was started, monotonic.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], rate: float | None = None) -> None:
        self.rate = rate
        self.answers = True
        self.taken = 0
        self.fresh = bytearray()
        self._tail = self._unanswered = b""
        self._allowed = 0.0
        self._at = self.read_at = time.monotonic()
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO  # what comes back is what the program drew
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        environment = {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.begun = time.monotonic()
        self.child = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)

    def send(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def answer(self) -> None:
        """Say that frames are drawn at once, as is asked at the start and behind long ones."""
        os.write(self._master, SYNC_REPLY)

    def mark(self) -> None:
        """From here on, what is drawn is fresh."""
        self.fresh.clear()

    def pump(
        self, seconds: float, until: Callable[[], bool] = lambda: False, also: socket.socket | None = None
    ) -> bool:
        """Take what is drawn until a condition holds, or for so long; whether it came to hold.

        The condition is asked whenever something came, from the program or from `also`.

        Raises BenchFailedError where the program ended.
        """
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wanted = self._may_take()
            waits: list[int | socket.socket] = [self._master] if wanted else []
            waits += [also] if also is not None else []
            ready = select.select(waits, [], [], left if self.rate in (None, 0) else min(left, BURST_S / 2))[0]
            if self._master in ready:
                self._take(wanted)
            elif also is not None and also in ready and not until():
                time.sleep(0.001)  # a part of a line came
            if self.child.poll() is not None:
                raise BenchFailedError(f"The measured program ended. It said last: {self.last_words()}")
        return True

    def seen(self, text: str, seconds: float = PATIENCE_S) -> float:
        """Pump until a fresh text was drawn; the time at which it was read. Raises BenchFailedError."""
        looked_for = text.encode()
        if not self.pump(seconds, lambda: looked_for in self.fresh):
            raise BenchFailedError(f"{text!r} was not drawn within {seconds:.0f} s: {self.last_words()}")
        return self.read_at

    def last_words(self) -> str:
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][-500:] if lines else "nothing"

    def leave(self) -> None:
        """Have the program end as its user would, and end it where it does not."""
        self.rate = None
        self.send(LEAVE)
        with suppress(BenchFailedError):
            self.pump(LEAVE_S)
        self.close()

    def close(self) -> None:
        """End the program and the terminal."""
        with suppress(ProcessLookupError):
            self.child.kill()
        self.child.wait()
        os.close(self._master)

    def _may_take(self) -> int:
        now = time.monotonic()
        since, self._at = now - self._at, now
        if self.rate is None:
            self._allowed = 0.0
            return 65536
        self._allowed = min(self._allowed + self.rate * since, self.rate * BURST_S)
        return max(int(self._allowed), 0)

    def _take(self, wanted: int) -> None:
        try:
            drawn = os.read(self._master, wanted)
        except OSError:  # Linux says EIO once the program has closed its side
            drawn = b""
            self.child.wait(PATIENCE_S)
        self.read_at = time.monotonic()
        self._unanswered += drawn if self.answers else b""
        for _ in range(self._unanswered.count(SYNC_QUERY)):
            self.answer()
        self._unanswered = self._unanswered.rpartition(SYNC_QUERY)[2][1 - len(SYNC_QUERY) :]  # it may come in pieces
        self.taken += len(drawn)
        self._allowed -= len(drawn)
        self.fresh += drawn
        self._tail = (self._tail + drawn)[-TAIL:]


class Wire:
    """JSON lines to and from the program, beside its terminal. Its socket is a file, which tmux passes on too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "wire"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen(1)
        self._socket: socket.socket | None = None
        self._buffer = b""

    def accept(self, terminal: Terminal) -> None:
        """Wait for the program to come, while its terminal is read."""
        self._listening.setblocking(False)

        def came() -> bool:
            with suppress(BlockingIOError):
                self._socket = self._listening.accept()[0]
                self._socket.setblocking(False)
            return self._socket is not None

        if not terminal.pump(PATIENCE_S, came, self._listening):
            raise BenchFailedError(f"The measured program did not come up: {terminal.last_words()}")

    def ask(self, terminal: Terminal, order: Mapping[str, Any], seconds: float = PATIENCE_S) -> dict[str, Any]:
        """Send an order and pump the terminal until it is answered. Raises BenchFailedError."""
        self.tell(order)
        return self.hear(terminal, seconds)

    def tell(self, order: Mapping[str, Any]) -> None:
        assert self._socket is not None
        self._socket.sendall(json.dumps(order).encode() + b"\n")

    def hear(self, terminal: Terminal, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """The program's next line; one with an error is raised as BenchFailedError."""
        assert self._socket is not None
        if not terminal.pump(seconds, self._whole_line, self._socket):
            raise BenchFailedError(f"The measured program gave no answer in {seconds:.0f} s: {terminal.last_words()}")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchFailedError(answer["error"])
        return answer

    def close(self) -> None:
        for each in (self._socket, self._listening):
            if each is not None:
                each.close()

    def _whole_line(self) -> bool:
        assert self._socket is not None
        with suppress(BlockingIOError):
            self._buffer += self._socket.recv(65536)
        return b"\n" in self._buffer
