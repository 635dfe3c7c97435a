"""What the shell can complete. Fast, so it loads nothing heavy and asks no hub.

A shell shows what these print, so each gives nothing rather than fail.
"""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing

from mtplx_tui import paths

MOST = 50
_SAFE = re.compile(r"[\w./-]+")  # zsh evaluates what is offered to it
Choices = list[tuple[str, str]]
"""What can be typed, each with a word of help."""


def models(incomplete: str) -> Choices:
    """Models that are bundled, in their own folder, or in the hub's cache."""
    from engine.models.locate import here

    try:
        return _starting(incomplete, ((name, "") for name in here()))
    except OSError:
        return []


def to_pull(incomplete: str) -> Choices:
    """Models whose download was begun, then those of the catalog. The hub is not asked."""
    from engine.catalog import catalog
    from engine.hub import partly_here

    try:
        begun = [(repo, "begun") for repo in partly_here()]
    except OSError:
        begun = []
    return _starting(incomplete, dict([*((model.repo, model.quantization) for model in catalog()), *begun]).items())


def to_remove(incomplete: str) -> Choices:
    """Models that lie in the hub's cache, whole or not."""
    from engine.hub import cached

    try:
        return _starting(incomplete, ((repo, "") for repo in cached()))
    except OSError:
        return []


def settings(incomplete: str) -> Choices:
    """Names of settings."""
    from mtplx_tui.saved_settings import SETTINGS

    return _starting(incomplete, ((setting.name, "") for setting in SETTINGS))


def clients(incomplete: str) -> Choices:
    """The programs that `connect` knows."""
    from mtplx_tui.connect.clients import CLIENTS

    return _starting(incomplete, ((name, "") for name in CLIENTS))


def rooms(incomplete: str) -> Choices:
    """The rooms of the workbench, and the help."""
    return _starting(incomplete, ((name, "") for name in room_names()))


def room_names() -> list[str]:
    """What `screenshot` can draw."""
    from mtplx_tui.rooms import TABS

    return [*(tab.name for tab in TABS), "help"]


def session_ids(incomplete: str) -> Choices:
    """The saved chats, the last used first."""
    path = paths.sessions_file()
    query = "SELECT id, CAST(title AS TEXT) FROM sessions ORDER BY updated DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.2)) as db:
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            found = db.execute(query, (MOST,)).fetchall()
    except sqlite3.Error:
        return []
    return _starting(incomplete, ((str(number), title) for number, title in found))


def _starting(incomplete: str, choices: Iterable[tuple[str, str]]) -> Choices:
    fitting = ((value, text) for value, text in choices if value.startswith(incomplete) and _SAFE.fullmatch(value))
    return [(value, "".join(c if c.isalnum() or c in " .,?+=-" else " " for c in text)) for value, text in fitting]
