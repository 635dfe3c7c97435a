"""`mtplx-tui` without a command: the screen, in a child process under guard.py."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx_tui import guard, paths
from mtplx_tui.commands import defaults
from mtplx_tui.commands.defaults import ENGINE
from mtplx_tui.options import EngineOptions, UsageError

if TYPE_CHECKING:
    from engine.config import EngineConfig


def tui(options: EngineOptions, ascii_only: bool, url: str | None = None, key_file: Path | None = None) -> int:
    """Run the screen and give the exit code, over the server at `url` where one is given.

    Raises:
        UsageError: there is no terminal, or the options can not be. CommandFailedError: there is no server at `url`.
    """
    loaded = defaults.kept()
    kept = {} if loaded is None else loaded.saved.model_dump(mode="json", include=loaded.saved.model_fields_set)
    given = _given(options, ascii_only, kept)
    if "depth" not in given:  # one that is kept is a setting that can be changed while the engine runs
        options = replace(options, depth="auto")
    if url is None:
        options.config()  # what can not be is refused before the screen is up
    if key_file is not None and url is None:
        raise UsageError("--key-file is for --connect URL.")
    if url is not None and given.keys() & set(ENGINE):
        raise UsageError("--connect shows an engine that runs already; leave the options of an engine out.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError('The screen needs a terminal. Without one, use: mtplx-tui ask "your question".')
    link = _running_here(options.config(), kept.get("key_file")) if url is None else _at(url, key_file)
    settings = {
        "options": asdict(options),
        "ascii": ascii_only,
        "link": link,
        "chosen": _chosen(kept, given),
        "notes": [] if loaded is None else loaded.notes,
    }
    # -P: the folder that the user stands in may hold an engine/ or a server/ of its own
    argv = [sys.executable, "-P", "-m", "mtplx_tui.commands.screen", json.dumps(settings)]
    return guard.run(argv, paths.log_file())


def _given(options: EngineOptions, ascii_only: bool, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line asks for, by the settings' names: neither a default nor what is kept."""
    usual = asdict(EngineOptions())
    given = {name: value for name, value in asdict(options).items() if value not in (usual[name], str(kept.get(name)))}
    if ascii_only != (kept.get("glyphs") == "ascii"):
        given["glyphs"] = "ascii" if ascii_only else "unicode"
    return given


def _chosen(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What services.Chosen is made of."""
    live: dict[str, Any] = {}
    if kept:
        from server.settings import Settings

        live = {name: value for name, value in kept.items() if name in Settings.model_fields}
    if "depth" in given:
        live["depth"] = int(given["depth"])
    drawn = {name: kept[name] for name in ("theme", "thinking") if name in kept}
    return {**drawn, "kept": kept, "given": given, "live": live}


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


def _running_here(config: "EngineConfig", key_file: str | None) -> dict[str, Any] | None:
    """A server of ours that has loaded already what this config asks for, if its key is at hand.

    Args:
        key_file: where the user keeps keys for `serve`.
    """
    from mtplx_tui.running import same

    running = same(config, None if key_file is None else Path(key_file))
    if running is None:
        return None
    return {"url": running.url, "kind": "ours", "key_file": key_file if running.keyed else None, "attached": True}
