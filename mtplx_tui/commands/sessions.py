"""`mtplx-tui sessions`: the saved chats without the screen. Loads no model."""

import dataclasses
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common
from mtplx_tui.commands.common import JsonOption, UsageError
from mtplx_tui.commands.complete import session_ids

if TYPE_CHECKING:
    from mtplx_tui.store import SessionRow, Store

sessions = typer.Typer(
    help="See, search, export, rename and delete the saved chats.", rich_markup_mode=None, no_args_is_help=True
)

MOST = 1_000_000
IdArgument = Annotated[
    int,
    typer.Argument(min=1, metavar="ID", help="The chat's number, as the list has it.", autocompletion=session_ids),
]
LimitOption = Annotated[int, typer.Option(min=1, max=MOST, help="Most chats to show.")]


@sessions.command("list", epilog=exit_codes.HELP)
def list_sessions(limit: LimitOption = 200, as_json: JsonOption = False) -> int:
    """List the chats, the last used first."""
    with _opened() as store:
        rows = [] if store is None else store.sessions(limit)
    _print(rows, "no chat is saved", as_json)
    return exit_codes.OK


@sessions.command(epilog=exit_codes.HELP)
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What a title or a message must hold; case is ignored.")],
    limit: LimitOption = 200,
    as_json: JsonOption = False,
) -> int:
    """List the chats with this text in their title or in a message."""
    if not text.strip():
        raise UsageError("TEXT is empty; give a word to look for, or use: mtplx-tui sessions list")
    with _opened() as store:
        rows = [] if store is None else store.search(text, limit)
    _print(rows, f"no chat holds {text!r}", as_json)
    return exit_codes.OK


@sessions.command(epilog=exit_codes.HELP)
def show(session_id: IdArgument, as_json: JsonOption = False) -> int:
    """Print a chat as Markdown, or as JSON with all that is kept of it."""
    _put_out(_document(session_id, "json" if as_json else "md"))
    return exit_codes.OK


@sessions.command(epilog=exit_codes.HELP)
def export(
    session_id: IdArgument,
    form: Annotated[
        Literal["md", "json"], typer.Option("--format", help="md is to be read; json has all that is kept.")
    ] = "md",
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to; standard output where left out."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a chat to a file or to standard output. A file that is there already is never written over.

    With --json the result says where it was written; without a file that is the chat itself, as JSON.
    """
    if file is None:
        _put_out(_document(session_id, "json" if as_json else form))
        return exit_codes.OK
    text = _document(session_id, form)
    try:
        with file.open("x", encoding="utf-8", errors="replace") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already, and nothing was written. Give another name.") from None
    if as_json:
        common.print_json({"id": session_id, "format": form, "file": str(file.absolute())})
    else:
        print(f"chat {session_id} is in {file}")
    return exit_codes.OK


@sessions.command(epilog=exit_codes.HELP)
def rename(
    session_id: IdArgument,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="Empty goes back to the first question.")],
    as_json: JsonOption = False,
) -> int:
    """Give a chat another title."""
    with _found(session_id) as store:
        store.rename(session_id, title)
        now = store.facts(session_id).title
    if as_json:
        common.print_json({"id": session_id, "title": now})
    else:
        print(f"chat {session_id} is {_line(now)} now")
    return exit_codes.OK


@sessions.command(epilog=exit_codes.HELP)
def delete(
    session_id: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete a chat with all its messages. It can not be brought back; export it first to keep it."""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("There is no terminal to ask on; nothing was deleted. Give --yes to delete without asking.")
    with _found(session_id) as store:
        title = _line(store.facts(session_id).title)
        if not yes and not typer.confirm(f"Delete chat {session_id}, {title}?", err=True):
            print("nothing was deleted")
            return exit_codes.OK
        store.delete(session_id)
    if as_json:
        common.print_json({"deleted": session_id})
    else:
        print(f"deleted chat {session_id}, {title}")
    return exit_codes.OK


def list_lines(rows: "Sequence[SessionRow]") -> list[str]:
    """The chats as lines for a person."""
    wide = max((len(str(row.id)) for row in rows), default=0)
    return [
        f"{row.id:>{wide}}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(row.updated))}  "
        f"{row.messages:>4} messages  {_line(row.title)}  ({_line(row.model)})"
        for row in rows
    ]


def _print(rows: "list[SessionRow]", none: str, as_json: bool) -> None:
    if as_json:
        common.print_json({"sessions": [dataclasses.asdict(row) for row in rows]})
    else:
        print("\n".join(list_lines(rows)) or none)


def _line(text: str) -> str:
    """A title on one line, without what a terminal would obey."""
    from mtplx_tui.glyphs import one_line

    return one_line(text) or "(no title)"


def _put_out(text: str) -> None:
    from mtplx_tui.glyphs import mask

    # a model may have said an escape sequence, and a terminal would obey it
    print(mask(text) if sys.stdout.isatty() else text, end="")


def _document(session_id: int, form: Literal["md", "json"]) -> str:
    from mtplx_tui.session_export import document

    with _found(session_id) as store:
        return document(store.facts(session_id), store.messages(session_id), form)


@contextmanager
def _found(session_id: int) -> "Iterator[Store]":
    """The chats, where this one is among them. Raises StoreError."""
    from mtplx_tui.store_file import StoreError

    with _opened() as store:
        if store is None:
            raise StoreError(f"There is no saved chat number {session_id}; none was saved yet.")
        store.facts(session_id)
        yield store


@contextmanager
def _opened() -> "Iterator[Store | None]":
    """The chats; None where none was ever saved. A damaged file is left as it is. Raises StoreError."""
    from mtplx_tui.store import Store

    path = paths.sessions_file()
    if not path.exists():
        yield None
        return
    _refuse_damage(path)
    store = Store(path)
    try:
        yield store
    finally:
        store.close()


def _refuse_damage(path: Path) -> None:
    """The screen sets a damaged file aside and goes on; here somebody looks for what is in it."""
    from mtplx_tui.store_file import BUSY_SECONDS, StoreCorruptError, is_damage, plain

    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        if not is_damage(error):
            raise plain(error, path) from error
        verdict = str(error)
    if verdict != "ok":
        raise StoreCorruptError(
            f"The saved chats in {path} are damaged ({verdict}). The file was left as it is; the screen, when it is "
            "started, sets it aside under another name and begins a new one."
        )
