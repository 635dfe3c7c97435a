"""The command line: what there is, and the one place where every failure becomes a plain message and an exit code."""

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common, defaults
from mtplx_tui.commands.ask import ask
from mtplx_tui.commands.bench import bench
from mtplx_tui.commands.cache import cache
from mtplx_tui.commands.common import (
    DepthOption,
    EngineOptions,
    KvBitsOption,
    MemoryOption,
    ModelOption,
    ModeOption,
    ProfileOption,
)
from mtplx_tui.commands.connect import connect
from mtplx_tui.commands.doctor import doctor
from mtplx_tui.commands.inspect import inspect
from mtplx_tui.commands.models import models, pull, remove
from mtplx_tui.commands.screenshot import screenshot
from mtplx_tui.commands.serve import serve
from mtplx_tui.commands.servers import status, stop
from mtplx_tui.commands.sessions import sessions
from mtplx_tui.commands.settings import settings
from mtplx_tui.commands.tui import tui
from mtplx_tui.commands.tune import tune
from mtplx_tui.commands.verify import verify
from mtplx_tui.logs import log_to

COMPLETING = "_MTPLX_TUI_COMPLETE"
"""Set by a shell that asks what can be typed next."""

app = typer.Typer(
    name="mtplx-tui",
    epilog=exit_codes.HELP,
    rich_markup_mode=None,  # rich's help costs 0.1 s and draws boxes around it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (ask, serve, status, stop, connect, models, pull, remove, verify, tune, inspect, doctor, screenshot):
    app.command(epilog=exit_codes.HELP)(command)
app.add_typer(bench, name="bench", epilog=exit_codes.HELP)
app.add_typer(cache, name="cache", epilog=exit_codes.HELP)
app.add_typer(sessions, name="sessions", epilog=exit_codes.HELP)
app.add_typer(settings, name="settings", epilog=exit_codes.HELP)


@app.callback(invoke_without_command=True)
def screen(
    context: typer.Context,
    model: ModelOption = None,
    mode: ModeOption = "mtp",
    depth: DepthOption = "auto",
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    memory: MemoryOption = None,
    ascii_only: Annotated[bool, typer.Option("--ascii/--unicode", help="Draw with ASCII only.")] = False,
    url: Annotated[
        str | None,
        typer.Option("--connect", metavar="URL", help="Show the engine behind a server, ours or one like vLLM."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="That server's key, in a file that only you can read (chmod 600)."),
    ] = None,
) -> int:
    """Chat with a local model that drafts its own next tokens, and serve it to other programs.

    Without a command the chat screen opens. Where a server of ours runs here with the bundled model, it shows that one
    instead of loading the model twice.
    """
    options = EngineOptions(model, mode, depth, profile, kv_bits, memory)
    if context.invoked_subcommand is None:
        kept, ascii_only = defaults.of_screen(context, options, ascii_only)
        return tui(kept if url is None else options, ascii_only, url, key_file)
    context.default_map = defaults.of_command(context.invoked_subcommand)
    if (options, ascii_only, url, key_file) != (EngineOptions(), False, None, None):
        command = context.invoked_subcommand
        raise common.UsageError(f"Options before {command} belong to the screen; write them after it.")
    return exit_codes.OK


def main() -> None:
    """Run the command line and end the process with its exit code."""
    code = run(sys.argv[1:])
    if code == exit_codes.INTERRUPTED:
        # a thread may be in the middle of loading a model; the person at the keyboard does not want to wait for it
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and give its exit code. Whatever fails, the user gets one plain message."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without an answer's characters must not end it
    log_to(paths.log_file)
    try:
        # the usual start: Typer would import pydantic first, a quarter of a second of nothing to see
        if not arguments and COMPLETING not in os.environ and not paths.settings_file().exists():
            return tui(EngineOptions(), ascii_only=False)
        return app(arguments, prog_name="mtplx-tui", standalone_mode=False) or exit_codes.OK
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer's 1 would mean that a check did not pass
            return exit_codes.SIGNALLED + signal.SIGPIPE
        raise
    except Exception as error:
        before_end = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return _explain(error, as_json="--json" in before_end)


def _explain(error: Exception, as_json: bool) -> int:
    """Say what went wrong in one line, and with --json as JSON too; gives the exit code."""
    from engine.errors import BadRequestError, EngineError
    from mtplx_tui.store_file import StoreError

    param = getattr(error, "param", None)
    if isinstance(error, typer.TyperException):
        code, text = exit_codes.BAD_INPUT, _usage_text(error)
        param = getattr(param, "name", None)
    elif isinstance(error, common.UsageError | BadRequestError):
        code, text = exit_codes.BAD_INPUT, str(error)
    elif isinstance(error, EngineError | StoreError | common.CommandFailedError):
        code, text = exit_codes.FAILED, str(error)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code, text = exit_codes.FAILED, f"{where}{error.strerror or error}."
    else:
        logging.getLogger(__name__).error("an error of the program's own", exc_info=error)
        code = exit_codes.INTERNAL
        text = f"mtplx-tui met an error of its own: {type(error).__name__}: {error}. Details: {paths.log_file()}"
    with suppress(OSError):  # standard output or error may be what failed
        common.say(text)
        if as_json:
            common.print_json(common.error_json(error, text, param))
    return code


def _usage_text(error: typer.TyperException) -> str:
    """What is wrong with the command line; Typer's own words leave out the value, which pydantic knows."""
    text = error.format_message()
    if text.startswith("Usage:"):
        return text
    param, faults = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if param is not None and faults is not None:
        fault = faults()[0]
        name = param.opts[0] if param.opts[0].startswith("-") else (param.metavar or param.opts[0]).strip("[]")
        text = f"{name} is {fault['input']!r}: {fault['msg'].removeprefix('Value error, ').rstrip('.')}."
    return f"{text} See mtplx-tui --help."
