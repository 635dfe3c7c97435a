"""`mtplx-tui screenshot`: pictures of the rooms from a real run, for documents."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common, complete
from mtplx_tui.commands.common import CommandFailedError, JsonOption, UsageError

SIZES = ("120x40", "80x24")
SMALLEST, LARGEST = (80, 24), (400, 200)


def screenshot(
    rooms: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROOM]...", help="Such as chat, dashboard or help.", autocompletion=complete.rooms),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All rooms and the help.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(metavar="WxH", help="Characters; repeat for more. Default: 120x40 and 80x24.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to; pictures of the same name are written over.")
    ] = Path("screenshots"),
    as_json: JsonOption = False,
) -> int:
    """Draw rooms as SVG, from a real run of the bundled model that needs no terminal.

    It asks seeded questions and measures for real, so all rooms take minutes. Your own chats, results and settings are
    neither shown nor touched.
    """
    sizes = [_size(text) for text in size or SIZES]
    names = _rooms(rooms or [], every)
    with _apart():
        from mtplx_tui.pictures import PictureError, take

        try:
            files = take(names, sizes, out, common.progress)
        except PictureError as error:
            raise CommandFailedError(str(error)) from error
    if as_json:
        common.print_json({"files": [str(file.absolute()) for file in files]})
    else:
        print("\n".join(map(str, files)))
    return exit_codes.OK


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(least <= given <= most for least, given, most in zip(SMALLEST, size, LARGEST, strict=True)):
        raise UsageError(f"--size is {text!r}; give columns and rows from 80x24 to 400x200, such as 120x40.")
    return size


def _rooms(named: list[str], every: bool) -> list[str]:
    known = complete.room_names()
    if every == bool(named):
        raise UsageError(f"Name rooms or give --all, and not both. There are: {', '.join(known)}.")
    for name in named:
        if name not in known:
            raise UsageError(f"There is no room {name!r}; there are: {', '.join(known)}.")
    return [name for name in known if every or name in named]


@contextmanager
def _apart() -> Iterator[None]:
    """A place of its own for all files, true colours, and a terminal that is always the same."""
    with TemporaryDirectory(prefix="mtplx-tui-") as folder:
        names = {f"XDG_{name}_HOME": f"{folder}/{name.lower()}" for name in ("DATA", "CONFIG", "STATE", "CACHE")}
        names |= {"HF_HUB_CACHE": f"{folder}/hub", "TEXTUAL_COLOR_SYSTEM": "truecolor", "TERM": "xterm-256color"}
        before = {name: os.environ.get(name) for name in (*names, "NO_COLOR", "MTPLX_API_KEY")}
        os.environ.update(names)
        for name in ("NO_COLOR", "MTPLX_API_KEY"):
            os.environ.pop(name, None)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
