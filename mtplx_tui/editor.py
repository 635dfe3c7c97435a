"""A text in the user's own editor."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path


class EditorError(Exception):
    """The editor could not be used; the text can be shown to a user. What was written is not lost."""


def edited(text: str) -> str:
    """Open the text in $VISUAL or $EDITOR (vi where neither is set) and give it as it was saved.

    The terminal must be the editor's meanwhile. Raises EditorError.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="mtplx-message-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            done = subprocess.run([*shlex.split(command), str(file)], check=False)
            after = file.read_text(encoding="utf-8", errors="surrogatepass")
        except (OSError, ValueError) as error:
            raise EditorError(f"{command} can not be used as an editor: {error}. Set EDITOR to another one.") from error
        if done.returncode:
            raise EditorError(f"{command} ended with exit code {done.returncode}; the message is as it was.")
        return after.removesuffix("\n")
