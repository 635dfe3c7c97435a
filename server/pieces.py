"""What a model says, in the form that every API writes from: reasoning, text, and tool calls as they are made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The model calls the tool `name`; `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of a call's arguments; all of them together are the JSON text of one object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is whole."""

    index: int


Piece = Reasoning | Text | CallBegin | CallArguments | CallEnd
