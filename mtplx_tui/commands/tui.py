"""`mtplx-tui` without a command: the screen, in a child process under guard.py."""

import dataclasses
import json
import sys

from mtplx_tui import guard, paths
from mtplx_tui.options import EngineOptions, UsageError


def tui(options: EngineOptions, ascii_only: bool) -> int:
    """Run the screen and give the exit code. Raises UsageError where there is no terminal, or for the options."""
    options.config()  # what can not be is refused before the screen is up
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError('The screen needs a terminal. Without one, use: mtplx-tui ask "your question".')
    settings = {"options": dataclasses.asdict(options), "ascii": ascii_only}
    # -P: the folder that the user stands in may hold an engine/ or a server/ of its own
    argv = [sys.executable, "-P", "-m", "mtplx_tui.commands.screen", json.dumps(settings)]
    return guard.run(argv, paths.log_file())
