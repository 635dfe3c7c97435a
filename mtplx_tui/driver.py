"""Textual's way to the terminal, which knows whether the terminal keeps up.

Textual queues what it draws for a thread that writes it. Behind a slow line 10 frames wait there, each older than the
last, and an echo comes after them all; once 30 writes wait, the event loop does. And what was written is not seen yet:
ssh and what is below it buffer megabytes. So the terminal is asked now and then to answer, behind what was drawn.
"""

import time
from typing import IO, Any, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

QUESTION = "\x1b[?2026$p"
"""The one that Textual asks at the start, so that its parser knows the answer."""
ASK_AFTER = 2048
WINDOW = 8192
"""Characters that may be under way, 1/8 s on a line of 64 KB/s. Below it a far terminal is drawn at full pace."""
LOST_S = 12.0
"""When no answer came for so long, the terminal is taken for one that does not answer, until it does after all."""
LEAVE_S = 0.3
"""How long the program waits for an answer before it leaves the terminal, or the shell would get it as keys."""


class TerminalDriver(LinuxDriver):
    """A LinuxDriver (macOS's too) that counts what it is given, what was written, and what the terminal saw."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._counted = _Counted(cast(IO[str], self._file))
        self._file = cast(Any, self._counted)  # all that its writing thread needs of a file
        self._given = 0
        self._seen = 0
        self._answers = False  # the terminal is one that does
        self._asked: tuple[int, float] | None = None  # what was given before the open question, and when it was put

    def behind(self) -> bool:
        """Whether the terminal should get nothing more just now."""
        self._ask()
        unwritten = self._given > self._counted.written
        return unwritten or (self._answers and self._given - self._seen > WINDOW)

    def write(self, data: str) -> None:
        self._given += len(data)
        super().write(data)

    def flush(self) -> None:
        """The end of a frame."""
        super().flush()
        self._ask()

    def _ask(self) -> None:
        """Have the terminal answer once it saw all this, if that is not under way already."""
        if self._asked is not None and time.monotonic() - self._asked[1] > LOST_S:
            self._answers, self._asked = False, None
        if self._answers and self._asked is None and self._given - self._seen > ASK_AFTER:
            self._asked = (self._given, time.monotonic())  # first: the answer comes on another thread
            self.write(QUESTION)

    def process_message(self, message: Message) -> None:
        """On the thread that reads keys."""
        if isinstance(message, TerminalSupportsSynchronizedOutput):
            self._seen = self._asked[0] if self._asked is not None else self._seen
            self._answers, self._asked = True, None
        super().process_message(message)

    def stop_application_mode(self) -> None:
        while self._asked is not None and time.monotonic() - self._asked[1] < LEAVE_S:
            time.sleep(0.01)
        self._asked = None
        super().stop_application_mode()


class _Counted:
    """A file for one writing thread. `written` is how many characters of it were flushed."""

    def __init__(self, file: IO[str]) -> None:
        self.written = 0
        self._file = file
        self._new = 0

    def write(self, text: str) -> None:
        self._new += len(text)
        self._file.write(text)

    def flush(self) -> None:
        self._file.flush()
        self.written, self._new = self.written + self._new, 0

    def fileno(self) -> int:
        return self._file.fileno()
