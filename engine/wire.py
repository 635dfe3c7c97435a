"""What ProcessEngine and its child process tell each other: plain data, pickled through private pipes between the two.

`control` carries the config first, then Submit, Cancel, ClearCache and Stop one way and an Answer to each Submit the
other way; `events` carries Batches from the child. Nothing else can write to either, and nothing of it is ever kept in
a file.
"""

import logging
from dataclasses import dataclass

from engine.errors import EngineError
from engine.events import Event
from engine.handle import ModelInfo
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request. Its events come back under `ticket`, since two requests may have the same id."""

    ticket: int
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class ClearCache:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    """End all requests as cancelled, within about `seconds`, and exit."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a Submit was taken in: `error` says why not."""

    ticket: int
    error: EngineError | None


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the request with this ticket; None is one of the whole engine's."""

    ticket: int | None
    event: Event


@dataclass(frozen=True, slots=True)
class Loaded:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """The model could not be loaded, or the engine stopped for good."""

    error: EngineError


Item = Told | Loaded | Failed | logging.LogRecord


@dataclass(frozen=True, slots=True)
class Batch:
    """What has come up since the last one, in order.

    Attributes:
        beat: when the engine thread last went round its loop, by `time.monotonic()`, which is one clock for all
            processes on Linux and macOS; times in events need no correction either.
    """

    beat: float
    items: tuple[Item, ...]
