"""What the store gives: one record a row."""

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
HEAD = -1
"""Stands for the end of the path that is shown, as the parent of a new message."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A conversation in the list. `updated` is in unix seconds; `title` is empty before the first user message.

    Attributes:
        messages: all there are, versions that are not shown included.
    """

    id: int
    title: str
    model: str
    updated: float
    messages: int


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message. `stats` and `finish_reason` belong to finished answers of the assistant.

    Attributes:
        parent: the message that it follows; None for a first one.
        version, versions: its place, from 1, among those that follow the same message, and how many these are.
    """

    id: int
    role: Role
    content: str
    reasoning: str
    stats: dict[str, Any] | None
    finish_reason: str | None
    parent: int | None = None
    version: int = 1
    versions: int = 1


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What belongs to a conversation as a whole. `options` are sampling settings by name, of those that were set."""

    id: int
    title: str
    model: str
    system: str
    options: dict[str, Any]
