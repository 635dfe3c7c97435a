"""What all commands share: options, results and errors as text or JSON, and starting an engine."""

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mtplx_tui.commands import complete
from mtplx_tui.options import EngineOptions as EngineOptions
from mtplx_tui.options import KvBits, Mode, ProfileName
from mtplx_tui.options import UsageError as UsageError

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.engine import ThreadEngine
    from engine.events import Event
    from engine.handle import EngineHandle, EventSink

AnyEngine = TypeVar("AnyEngine", bound="EngineHandle")

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A bundled name, a folder, or a hub repository that is already here.",
        autocompletion=complete.models,
    ),
]
ModeOption = Annotated[Mode, typer.Option("--mode", help="mtp drafts with the model's own head; ar decodes plainly.")]
DepthOption = Annotated[
    str, typer.Option("--depth", metavar="N|auto", help="Drafts a step, 0 to 8; auto lets the engine choose.")
]
ProfileOption = Annotated[
    ProfileName,
    typer.Option(
        "--profile",
        help="turbo: the fastest. sustained: gives memory back, for long prompts. burst: reads prompts in large "
        "pieces. exact: unseeded answers too are plain decoding's, on MLX's own kernels. stock: turbo on MLX's own "
        "kernels.",
    ),
]
KvBitsOption = Annotated[
    KvBits | None,
    typer.Option("--kv-bits", help="Bits of a cached key or value: less memory, slightly other answers. Default: all."),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Most that weights and caches may take, such as 8GB or 12GiB."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


class CommandFailedError(Exception):
    """A command could not do its work; the text can be shown to a user as it is."""


def say(text: str) -> None:
    """A line for the person at the terminal; standard output is for results only."""
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """What is being done, dimmed, for a person who waits; nothing in a log or a pipe."""
    if sys.stderr.isatty():
        say(f"\x1b[2m{text}\x1b[0m")


def size(count: int) -> str:
    """A number of bytes for a person."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} bytes"


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
    """Load a model and wait for it, as `loaded` does. The automatic depth starts from what `tune` kept."""
    from engine.engine import ThreadEngine
    from mtplx_tui.saved_tuning import with_saved_tuning

    return loaded(lambda on_event: ThreadEngine(with_saved_tuning(config), on_event))


def loaded(start: "Callable[[EventSink], AnyEngine]") -> "AnyEngine":
    """Start an engine and wait for its model; a person at the terminal sees what it is doing.

    Raises the load's EngineError.
    """
    from engine.events import FailedEvent, LoadEvent, ReadyEvent

    events: SimpleQueue[Event] = SimpleQueue()

    def hear(event: "Event") -> None:
        if isinstance(event, LoadEvent | ReadyEvent | FailedEvent):  # nobody takes out the others, for hours
            events.put(event)

    engine = start(hear)
    while not isinstance(event := next_event(events), ReadyEvent | FailedEvent):
        if isinstance(event, LoadEvent):
            progress(event.stage)
    engine.wait_ready()
    return engine


def next_event(events: "SimpleQueue[Event]") -> "Event":
    """Wait for an event; unlike a plain `get`, Ctrl-C ends the wait on macOS too."""
    while True:
        with suppress(Empty):
            return events.get(timeout=0.5)
