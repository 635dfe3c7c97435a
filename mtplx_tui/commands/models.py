"""`mtplx-tui models`, `pull` and `remove`: what there is, getting it, and deleting it again. None loads a model."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common, complete
from mtplx_tui.commands.common import JsonOption, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.downloads import Progress
    from mtplx_tui.models_page.shelf import ModelRow

HELP = "A hub repository, as org/name."


def models(
    context: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000_000, metavar="TOKENS", help="Prompt and answer that a model must have room for."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List the models that are here and those of the catalog, and which of them fit this machine's memory."""
    from mtplx_tui.models_page.shelf import shelf

    rows = shelf(context)
    if as_json:
        common.print_json({"models": [dataclasses.asdict(row) for row in rows]})
    else:
        print("\n".join(table(rows)))
    return exit_codes.OK


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help=HELP, autocompletion=complete.to_pull)],
    revision: Annotated[
        str | None, typer.Option(metavar="REVISION", help="A branch, tag or commit; the newest where left out.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Download a model from the hub, or go on with a download that was stopped.

    Only what a model needs is fetched, into the hub's cache; nothing that could run code. Each file's checksum is
    compared. With --json the progress at a terminal is a JSON object a line, on standard error.
    """
    from engine.downloads import download
    from engine.hub import is_repository, look_up
    from engine.models.locate import here

    if not is_repository(name):
        already = " It is here already." if name in here() else ""
        raise UsageError(f"NAME is {name!a}; give a hub repository as org/name.{already}")
    common.progress(f"asking the hub for {name}")
    listing = look_up(name, revision)
    try:
        folder = download(listing, _teller(as_json))
    except KeyboardInterrupt:
        common.say(f"Stopped; what came of {name} is kept, and the same command goes on with it.")
        raise
    result = {
        "name": name,
        "revision": listing.revision,
        "commit": listing.commit,
        "path": str(folder),
        "bytes": listing.size,
        "files": [dataclasses.asdict(file) for file in listing.files],
    }
    if as_json:
        common.print_json(result)
    else:
        use = name if listing.revision == "main" else str(folder)
        print(f"{name} is here, {common.size(listing.size)}, every checksum right. Use it with --model {use}")
    return exit_codes.OK


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help=HELP, autocompletion=complete.to_remove)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Delete a model, or what was begun of one, from the hub's cache.

    Other programs that use this cache lose it too.
    """
    from engine.hub import folder_of, is_repository
    from engine.hub import remove as delete
    from engine.models.locate import here

    if not is_repository(name):
        why = "which comes with the program or is a folder of its own" if name in here() else "which is no repository"
        raise UsageError(f"NAME is {name!a}, {why}; only what lies in the hub's cache, as org/name, is removed.")
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                "There is no terminal to ask on; nothing was removed. Give --yes to remove without asking."
            )
        if folder_of(name).is_dir() and not typer.confirm(f"Delete {name} from {folder_of(name).parent}?", err=True):
            print("nothing was removed")
            return exit_codes.OK
    freed = delete(name)
    if as_json:
        common.print_json({"removed": name, "bytes": freed})
    else:
        print(f"removed {name}, {common.size(freed)}")
    return exit_codes.OK


def table(rows: "list[ModelRow]") -> list[str]:
    """The models as lines for a person."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'model':{width}}  {'where':8}{'size':>10}  {'head':16} {'tier':12} {'fits':6} {'tuned':5}"]
    for row in rows:
        size = "" if row.size is None else common.size(row.size)
        tuned = "" if row.tuned_depth is None else f"d{row.tuned_depth}"
        lines.append(
            f"{row.name:{width}}  {row.where:8}{size:>10}  {row.head or '':16} {row.tier or '':12} "
            f"{row.fits if row.fits != 'unknown' else '?':6} {tuned:5}{'  advised' if row.advised else ''}".rstrip()
        )
    told = sorted({row.fit_context for row in rows})
    return [
        *lines,
        f"fits: with up to {told[-1]:,} tokens of prompt and answer; tight: it loads, with fewer or with little room "
        "for other programs. Get one with: mtplx-tui pull org/name",
    ]


def progress_line(progress: "Progress") -> str:
    """How far a download is, for a person."""
    from mtplx_tui.charts.numbers import seconds

    share = progress.done / progress.total if progress.total else 1.0
    rate = "" if progress.rate is None else f"  {common.size(int(progress.rate))}/s  {seconds(progress.eta)} left"
    doing = "checking " if progress.stage == "checking" else ""
    whole = f"{common.size(progress.done)} of {common.size(progress.total)}"
    return f"{whole}  {share:.0%}{rate}  {doing}{progress.file}"


def _teller(as_json: bool) -> "Callable[[Progress], None]":
    import json

    if not sys.stderr.isatty():
        return lambda _: None

    def tell(progress: "Progress") -> None:
        if as_json:
            values: dict[str, Any] = dataclasses.asdict(progress)
            common.say(json.dumps(values))
        else:
            print(f"\r\x1b[2K\x1b[2m{progress_line(progress)}\x1b[0m", end="", file=sys.stderr, flush=True)
            if progress.file_done == progress.file_size and progress.stage == "downloading":
                print(file=sys.stderr)

    return tell
