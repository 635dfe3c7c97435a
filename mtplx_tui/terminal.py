"""The terminal's modes: how it was, and putting it back after a program that could not."""

import os
import termios
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

SAVE_CURSOR = b"\x1b7"

RESET = (
    b"\x1b[?2026l"  # show what a half-drawn frame holds back
    b"\x1b[<u"  # kitty keyboard protocol; the alternate screen has its own, so this comes before leaving it
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # mouse
    b"\x1b[?1004l"  # focus reports
    b"\x1b[?2004l"  # bracketed paste
    b"\x1b[?2048l"  # resize reports
    b"\x1b[?7h"  # wrap long lines
    b"\x1b[?1049l"  # the normal screen; the cursor goes to where SAVE_CURSOR was sent
    b"\x1b[0m\x1b[?25h"  # plain colours, cursor on
)


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal as it was when `remember` looked. Keys come from `keys` and the screen is written to `screen`."""

    keys: int
    screen: int
    attributes: list[Any]

    @classmethod
    def remember(cls, keys: int, screen: int) -> "Terminal":
        """Note the modes of the terminal behind two file descriptors. Raises termios.error where there is none."""
        return cls(keys, screen, termios.tcgetattr(keys))

    def save_cursor(self) -> None:
        """Note where the cursor is, for `restore`."""
        os.write(self.screen, SAVE_CURSOR)

    def restore(self) -> None:
        """Put everything back that a full-screen program may have changed, on a terminal that may be gone by now."""
        with suppress(OSError):
            os.write(self.screen, RESET)
        with suppress(termios.error):
            termios.tcsetattr(self.keys, termios.TCSANOW, self.attributes)
            termios.tcflush(self.keys, termios.TCIFLUSH)  # mouse reports would be typed into the shell
