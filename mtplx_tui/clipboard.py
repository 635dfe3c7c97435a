"""Text for other programs: to the system's clipboard here, to the terminal's over SSH, and into a file in any case.

Nobody says whether a terminal has taken it (OSC 52 has no answer, Terminal.app and a plain tmux ignore it), so the
words never claim more than what was done.
"""

import os
from collections.abc import Callable
from contextlib import suppress

from mtplx_tui import paths


def copy(text: str, to_terminal: Callable[[str], None]) -> str:
    """Copy, and give what was done in words. `to_terminal` sends OSC 52."""
    text = text.encode("utf-8", "replace").decode()  # half a character can not leave the program
    to_terminal(text)
    file = paths.last_copy_file()
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as out:
            out.write(text)
    if "SSH_CONNECTION" in os.environ:
        return f"Sent to the terminal's clipboard (also in {file})."
    import pyperclip

    try:
        pyperclip.copy(text)
    except pyperclip.PyperclipException:
        return f"Sent to the terminal's clipboard (also in {file})."
    return "Copied."
