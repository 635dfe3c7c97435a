"""`mtplx-tui` without a command: the screen, in a child process under guard.py."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from mtplx_tui import guard, paths
from mtplx_tui.options import EngineOptions, UsageError


def tui(options: EngineOptions, ascii_only: bool, url: str | None = None, key_file: Path | None = None) -> int:
    """Run the screen and give the exit code, over the server at `url` where one is given.

    Raises:
        UsageError: there is no terminal, or the options can not be. CommandFailedError: there is no server at `url`.
    """
    options.config()  # what can not be is refused before the screen is up
    if key_file is not None and url is None:
        raise UsageError("--key-file is for --connect URL.")
    if url is not None and options != EngineOptions():
        raise UsageError("--connect shows an engine that runs already; leave the options of an engine out.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError('The screen needs a terminal. Without one, use: mtplx-tui ask "your question".')
    link = _running_here(options) if url is None else _at(url, key_file)
    settings = {"options": dataclasses.asdict(options), "ascii": ascii_only, "link": link}
    # -P: the folder that the user stands in may hold an engine/ or a server/ of its own
    argv = [sys.executable, "-P", "-m", "mtplx_tui.commands.screen", json.dumps(settings)]
    return guard.run(argv, paths.log_file())


def _at(url: str, key_file: Path | None) -> dict[str, Any]:
    """How the screen reaches a server. The key itself is on no command line."""
    from mtplx_tui.commands.common import CommandFailedError
    from mtplx_tui.remote import http
    from mtplx_tui.remote.probe import UnreachableError, kind_of

    try:
        kind = kind_of(url, http.read_key(key_file))
    except UnreachableError as error:
        raise CommandFailedError(str(error)) from error
    file = None if key_file is None else str(key_file.absolute())
    return {"url": http.base_url(url), "kind": kind, "key_file": file, "attached": False}


def _running_here(options: EngineOptions) -> dict[str, Any] | None:
    """A server of ours that has loaded already what these options ask for, if its key is at hand."""
    from mtplx_tui.running import same

    running = same(options)
    if running is None:
        return None
    from mtplx_tui.remote import http
    from mtplx_tui.remote.probe import UnreachableError, kind_of

    try:
        if kind_of(running.url, http.read_key(None)) != "ours":
            return None
    except (UsageError, UnreachableError):
        return None
    return {"url": running.url, "kind": "ours", "key_file": None, "attached": True}
