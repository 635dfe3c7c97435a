"""`mtplx-tui cache`: the prefixes of earlier prompts that are kept on disk. Loads no model."""

import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common
from mtplx_tui.commands.common import CommandFailedError, JsonOption, UsageError

if TYPE_CHECKING:
    from engine.caches.blobs import Blobs, Entry

cache = typer.Typer(
    help="See, check and empty what is kept of earlier prompts on disk.", rich_markup_mode=None, no_args_is_help=True
)


@cache.command("list", epilog=exit_codes.HELP)
def list_entries(as_json: JsonOption = False) -> int:
    """List what is kept, the last used first."""
    from engine.config import EngineConfig

    with _opened() as blobs:
        entries = [] if blobs is None else blobs.entries()
    result = {
        "folder": str(paths.prefixes_folder()),
        "bytes": sum(entry.nbytes for entry in entries),
        "limit_bytes": EngineConfig().disk_bytes,
        "entries": [_entry_json(entry) for entry in entries],
    }
    if as_json:
        common.print_json(result)
    else:
        print("\n".join(list_lines(result)))
    return exit_codes.OK


@cache.command(epilog=exit_codes.HELP)
def verify(as_json: JsonOption = False) -> int:
    """Read every file and compare its checksum; damaged ones are removed. Exit code 1 where there were some."""
    from engine.caches.blobs import UnusableError

    damaged: list[dict[str, Any]] = []
    checked = leftovers = 0
    with _opened() as blobs:
        for entry in [] if blobs is None else blobs.entries():
            assert blobs is not None
            checked += 1
            common.progress(f"reading file {checked}")
            try:
                blobs.check(entry)
            except (UnusableError, OSError) as error:
                if blobs.drop_broken(entry.key):
                    damaged.append(_entry_json(entry) | {"reason": str(error)})
        if blobs is not None:
            leftovers = blobs.remove_leftovers()
    result = {"checked": checked, "damaged": damaged, "leftovers_removed": leftovers}
    if as_json:
        common.print_json(result)
    else:
        for found in damaged:
            print(f"removed {found['key']} ({found['model']}, tokens {found['start']} to {found['end']}): ", end="")
            print(found["reason"])
        print(f"{checked} files read, {len(damaged)} damaged; {leftovers} leftovers removed")
    return exit_codes.NOT_PASSED if damaged else exit_codes.OK


@cache.command(epilog=exit_codes.HELP)
def clear(yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False, as_json: JsonOption = False) -> int:
    """Remove everything that is kept. Programs that run go on, and read prompts anew."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("There is no terminal to ask on; nothing was removed. Give --yes to remove without asking.")
    with _opened() as blobs:
        entries = [] if blobs is None else blobs.entries()
        if entries and not yes:
            size = common.size(sum(entry.nbytes for entry in entries))
            if not typer.confirm(f"Remove {len(entries)} prefixes, {size}, of {paths.prefixes_folder()}?", err=True):
                print("nothing was removed")
                return exit_codes.OK
        if blobs is not None:
            blobs.clear()
    result = {"removed": len(entries), "bytes": sum(entry.nbytes for entry in entries)}
    if as_json:
        common.print_json(result)
    else:
        print(f"removed {result['removed']} prefixes, {common.size(result['bytes'])}")
    return exit_codes.OK


def list_lines(result: dict[str, Any]) -> list[str]:
    """The result of `cache list` as lines for a person."""
    entries = result["entries"]
    width = max((len(entry["model"]) for entry in entries), default=0)
    lines = [
        f"{entry['model']:{width}}  tokens {entry['start']:>6} to {entry['end']:<6}  "
        f"{common.size(entry['bytes']):>10}  "
        f"used {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry['used']))}  {entry['key'][:12]}"
        for entry in entries
    ]
    total, limit = common.size(result["bytes"]), common.size(result["limit_bytes"])
    return [*lines, f"{len(entries)} prefixes, {total} of at most {limit}, in {result['folder']}"]


def _entry_json(entry: "Entry") -> dict[str, Any]:
    return {
        "key": entry.key,
        "model": entry.model,
        "build": entry.build,
        "start": entry.start,
        "end": entry.end,
        "tokens": entry.end - entry.start,
        "bytes": entry.nbytes,
        "used": entry.used,
    }


@contextmanager
def _opened() -> "Iterator[Blobs | None]":
    """The folder; None where nothing was ever kept."""
    from engine.caches.blobs import Blobs

    folder = paths.prefixes_folder()
    if not folder.exists():
        yield None
        return
    try:
        blobs = Blobs(folder)
        try:
            yield blobs
        finally:
            blobs.close()
    except sqlite3.Error as error:
        raise CommandFailedError(f"The cache in {folder} can not be used: {error}. Remove that folder.") from error
