"""What all commands share: options, results and errors as text or JSON, and starting an engine."""

import json
import re
import sys
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.engine import ThreadEngine
    from engine.events import Event

Mode = Literal["mtp", "ar"]

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="A bundled name, a folder, or a hub repository that is already here."),
]
ModeOption = Annotated[Mode, typer.Option("--mode", help="mtp drafts with the model's own head; ar decodes plainly.")]
DepthOption = Annotated[
    str, typer.Option("--depth", metavar="N|auto", help="Drafts a step, 0 to 8; auto lets the engine choose.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


class UsageError(Exception):
    """The command line asks for something that can not be done; the text can be shown to a user as it is."""


class CommandFailedError(Exception):
    """A command could not do its work; the text can be shown to a user as it is."""


def parse_depth(text: str) -> int | None:
    """A depth from the command line; None is auto. Raises UsageError."""
    if text == "auto":
        return None
    if re.fullmatch("[0-8]", text):
        return int(text)
    raise UsageError(f"--depth is {text!r}; give a number from 0 to 8, or auto.")


def say(text: str) -> None:
    """A line for the person at the terminal; standard output is for results only."""
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """What is being done, dimmed, for a person who waits; nothing in a log or a pipe."""
    if sys.stderr.isatty():
        say(f"\x1b[2m{text}\x1b[0m")


def print_json(result: Any) -> None:
    """One JSON object on standard output. ASCII only, so that it survives any terminal, pipe and locale."""
    print(json.dumps(result, indent=2), flush=True)


def error_json(error: Exception, message: str, param: str | None) -> dict[str, Any]:
    """What `--json` prints where a command failed: the kind of error in snake case, its text, the field at fault."""
    kind = re.sub(
        r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(error).__name__.removesuffix("Error")
    ).lower()
    return {"error": {"type": kind, "message": message, "param": param}}


def start_engine(config: "EngineConfig") -> "ThreadEngine":
    """Load a model and wait for it; a person at the terminal sees what it is doing. Raises the load's EngineError."""
    from engine.engine import ThreadEngine
    from engine.events import FailedEvent, LoadEvent, ReadyEvent

    events: SimpleQueue[Event] = SimpleQueue()
    engine = ThreadEngine(config)
    unlisten = engine.listen(events.put)
    while engine.state == "loading":
        event = next_event(events)
        if isinstance(event, ReadyEvent | FailedEvent):
            break
        if isinstance(event, LoadEvent):
            progress(event.stage)
    unlisten()
    engine.wait_ready()
    return engine


def next_event(events: "SimpleQueue[Event]") -> "Event":
    """Wait for an event; unlike a plain `get`, Ctrl-C ends the wait on macOS too."""
    while True:
        with suppress(Empty):
            return events.get(timeout=0.5)
