"""`mtplx-tui connect CLIENT`: the configuration that makes another program use our server."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common, complete
from mtplx_tui.commands.common import CommandFailedError, JsonOption, UsageError

if TYPE_CHECKING:
    from mtplx_tui.connect.clients import Connection, Target

DEFAULT_URL, DEFAULT_MODEL = "http://127.0.0.1:8000", "demo-13m"
NAMES = "claude-code, codex, opencode, pi, open-webui, continue"


def connect(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of {NAMES}.", autocompletion=complete.clients)],
    write: Annotated[
        bool, typer.Option("--write", help="Write it into the client's own file, after showing what changes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --write: do not ask.")] = False,
    url: Annotated[
        str | None, typer.Option(help="The server's address; the one that runs here, if none is given.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Show what makes a coding agent or chat program use this server, or write it into that program's settings."""
    from mtplx_tui.connect.clients import CLIENTS

    if client not in CLIENTS:
        raise UsageError(f"There is no client {client!r} here; choose one of {NAMES}.")
    target = _target(url)
    connection = CLIENTS[client](target, Path.home())
    if as_json:
        common.print_json(_as_json(connection, target))
    elif not write:
        print("\n".join(_lines(connection)))
    if write:
        return _write(connection, client, yes)
    return exit_codes.OK


def _target(url: str | None) -> "Target":
    """What the server at `url` says of itself, or else the first one that runs here."""
    from mtplx_tui.connect.clients import Target
    from mtplx_tui.running import servers

    running = next((server for server in servers() if url is None or server.url == url.rstrip("/")), None)
    if running is None and url is None:
        common.say(f"No server of ours runs here; this is for {DEFAULT_URL} with {DEFAULT_MODEL} (mtplx-tui serve).")
        return Target(DEFAULT_URL, DEFAULT_MODEL, 2048, keyed=False)
    import httpx

    address = (url or (running.url if running else "")).rstrip("/")
    try:
        answer = httpx.get(f"{address}/v1/models", timeout=5.0, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandFailedError(
            f"No server answers at {address} ({error}). Start one with mtplx-tui serve."
        ) from error
    if answer.status_code == 401:
        model = running.model if running else DEFAULT_MODEL
        return Target(address, model, running.context if running else 2048, keyed=True)
    try:
        model = answer.json()["data"][0]
        return Target(address, model["id"], int(model["context_length"]), keyed=False)
    except (ValueError, LookupError, TypeError) as error:
        raise CommandFailedError(
            f"{address} answers {answer.status_code}, and not as a server of ours that is ready does."
        ) from error


def _write(connection: "Connection", client: str, yes: bool) -> int:
    from mtplx_tui.connect.merge import MergeError, difference, merged, write

    if connection.settings is None:
        raise UsageError(
            f"{client} has no settings file to write to; start it with the variables shown without --write."
        )
    file = connection.settings.file
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        after = merged(connection.settings, before)
    except (MergeError, UnicodeDecodeError) as error:
        raise CommandFailedError(str(error)) from error
    changes = difference(connection.settings, before, after)
    if not changes:
        print(f"{file} says so already.")
        return exit_codes.OK
    print(changes, end="")
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("There is no terminal to ask on; nothing was written. Give --yes to write without asking.")
        if not typer.confirm(f"Write this to {file}?", err=True):
            print("nothing was written")
            return exit_codes.OK
    write(file, after)
    print("\n".join([f"written to {file}", *_start_lines(connection, variables=False)]))
    return exit_codes.OK


def _lines(connection: "Connection") -> list[str]:
    from mtplx_tui.connect.merge import merged

    lines: list[str] = []
    if connection.settings is not None:
        lines += [f"# {connection.settings.file}", merged(connection.settings, "").rstrip(), ""]
    return lines + _start_lines(connection, variables=True)


def _start_lines(connection: "Connection", variables: bool) -> list[str]:
    given = connection.variables or {} if variables or connection.settings is None else {}
    either = ["# or, without the file:"] if given and connection.settings is not None else []
    words = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    return [*either, " \\\n  ".join([*words, connection.start]), *(f"# {note}" for note in connection.notes)]


def _as_json(connection: "Connection", target: "Target") -> dict[str, Any]:
    settings = connection.settings
    return {
        "target": asdict(target),
        "file": None if settings is None else str(settings.file),
        "settings": None if settings is None else json.loads(json.dumps(settings.values)),
        "variables": dict(connection.variables or {}),
        "start": connection.start,
        "notes": list(connection.notes),
    }
