"""JSON schemas from clients, before a grammar is made of them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from server.errors import invalid

DEEPEST = 64  # levels of a schema; what real clients send has fewer than ten

_ABOUT = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "example", "examples", "readOnly", "title"}
    | {"writeOnly", "x-guidance"}
)
"""Keywords that say something about a schema and ask for nothing. They are most of what real tools' schemas hold."""
_ANY_NAME = ("propertyNames", {"type": "string"})  # names are strings; what zod writes for every record says no more
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "enum", "required"})


def require_shallow(schema: Any, path: str) -> None:
    """Raise ApiError 400 for a schema that is nested too deep."""
    if not _shallow(schema, DEEPEST):
        raise invalid(path, f"is nested more than {DEEPEST} deep")


def _shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(each, levels - 1) for each in inner)


def rules_of(schema: Any) -> Any:
    """A schema without what is only about it."""
    if isinstance(schema, list):
        return [rules_of(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    asks = ((word, value) for word, value in schema.items() if word not in _ABOUT and (word, value) != _ANY_NAME)
    return {word: _kept(word, value) for word, value in asks}


def _kept(word: str, value: Any) -> Any:
    if word in _VALUES:
        return value
    if word in _NAMED and isinstance(value, Mapping):
        return {name: rules_of(each) for name, each in value.items()}
    return rules_of(value)


def target(root: Any, reference: str) -> Any:
    """What a reference within a schema points to; None where it points elsewhere, or nowhere."""
    place = root if reference.startswith("#") else None
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        place = place.get(part) if isinstance(place, Mapping) else None
    return place


def moved(schema: Any, to: str) -> Any:
    """A schema whose references mean the same once it stands at `to` (as `#/$defs/all`) in another."""
    if isinstance(schema, list):
        return [moved(each, to) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {word: moved(value, to) for word, value in schema.items()}
    reference = inner.get("$ref")
    return inner | {"$ref": to + reference[1:]} if isinstance(reference, str) and reference[:1] == "#" else inner


def refers(schema: Any) -> bool:
    """Whether there is a reference anywhere in it."""
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(map(refers, schema.values()))
    return isinstance(schema, list) and any(map(refers, schema))
