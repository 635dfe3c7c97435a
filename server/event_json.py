"""The typed events of the engine, and the frames around them, as JSON: written by the server, read by its clients.

A frame is its fields beside a `type` that names its class: `{"type": "FinishEvent", "request_id": ...}`. Bytes are
base64 with the URL-safe alphabet; a logarithm of zero is the string "-Infinity". Unknown fields are ignored in reading.
"""

import operator
from functools import reduce
from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Discriminator, Tag, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from engine.events import Event
from server.facts import Hello, Lost

Frame = Event | Hello | Lost

KINDS: tuple[type[Frame], ...] = (*get_args(Event), Hello, Lost)


def _kind(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else type(value).__name__


_TAGGED: Any = reduce(operator.or_, [Annotated[kind, Tag(kind.__name__)] for kind in KINDS])
_FRAMES: TypeAdapter[Frame] = TypeAdapter(
    Annotated[_TAGGED, Discriminator(_kind)],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"),
)


class UnreadableError(ValueError):
    """The text is no frame that is known here."""


def encode(frame: Frame) -> bytes:
    """A frame as JSON. Raises UnreadableError where a text in it is no Unicode (it has lone surrogates)."""
    try:
        fields = _FRAMES.dump_json(frame)
    except PydanticSerializationError as error:
        raise UnreadableError(str(error)) from error
    return b'{"type":"%b",%b' % (type(frame).__name__.encode(), fields[1:])


def decode(text: bytes | str) -> Frame:
    """The frame that `text` is.

    Raises:
        UnreadableError: for anything else, and so for kinds of events that a newer server may send: pass over those.
    """
    try:
        return _FRAMES.validate_json(text)
    except ValidationError as error:
        raise UnreadableError(f"This is no event: {text[:60]!r}") from error
