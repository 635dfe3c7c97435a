"""What a parameter's text in an XML tool call is in JSON, by the schema of the tool."""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from pydantic_core import from_json

Types = frozenset[str]
"""JSON types, by the names that JSON schema has for them."""

STRING: Types = frozenset({"string"})
ANY: Types = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})

DEEPEST = 64  # schemas within schemas and references; what lies deeper may be anything


def types_of(parameters: Mapping[str, Any], key: str) -> Types:
    """Types that the schema of a tool's arguments allows for the one called `key`; all of them where it says nothing.

    It reads type, enum, const, local $ref, anyOf, oneOf and allOf.
    """
    found = _Schema(parameters)
    arguments = found.followed(parameters)
    properties, others = arguments.get("properties"), arguments.get("additionalProperties")
    schema = properties[key] if isinstance(properties, Mapping) and key in properties else others
    return found.types(schema, 0) or ANY  # a schema that nothing fits is no reason to lose a value


def as_json(text: str, types: Types) -> str:
    """The text itself where it is JSON of one of these types, else a JSON string of it.

    A text that may be a string as well as something else is something else where it can be: templates write strings
    bare, so `5` of a string or an integer is the integer, and `"5"` is a string with quotes in it.
    """
    if types != STRING and _own(text) & types:
        return text
    return json.dumps(text, ensure_ascii=False)


def _own(text: str) -> Types:
    """Types of a text as JSON; none where it is no JSON, or a JSON string."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return frozenset()
    return _types_of_value(value) - STRING


def _types_of_value(value: object) -> Types:
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        whole = isinstance(value, int) or value.is_integer()
        return frozenset({"number", "integer"} if whole else {"number"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


class _Schema:
    """Looks types up in a schema, each reference once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, Types] = {}

    def followed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a schema that is only a reference stands for."""
        for _ in range(DEEPEST):
            reference = schema.get("$ref")
            target = self._target(reference) if isinstance(reference, str) else None
            if not isinstance(target, Mapping):
                break
            schema = target
        return schema

    def types(self, schema: object, depth: int) -> Types:
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return ANY
        types = ANY
        for allowed in self._limits(schema, depth + 1):
            types &= allowed
        return types

    def _limits(self, schema: Mapping[str, Any], depth: int) -> Iterable[Types]:
        named = schema.get("type")
        if named is None and "enum" not in schema and ("properties" in schema or "items" in schema):
            named = "object" if "properties" in schema else "array"
        if named is not None:
            yield _named(named)
        if isinstance(schema.get("enum"), list):
            yield frozenset().union(*map(_types_of_value, schema["enum"]))
        if "const" in schema:
            yield _types_of_value(schema["const"])
        if isinstance(schema.get("$ref"), str):
            yield self._referred(schema["$ref"], depth)
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                yield frozenset().union(*(self.types(each, depth) for each in schema[word]))
        if isinstance(schema.get("allOf"), list):
            yield from (self.types(each, depth) for each in schema["allOf"])

    def _referred(self, reference: str, depth: int) -> Types:
        if reference not in self._known:
            self._known[reference] = frozenset()  # so one that leads back to itself adds nothing
            self._known[reference] = self.types(self._target(reference), depth)
        return self._known[reference]

    def _target(self, reference: str) -> object:
        """What a local reference points to; None for any other, and for one that points nowhere."""
        if not reference.startswith("#"):
            return None
        place: object = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            place = place.get(part) if isinstance(place, Mapping) else None
        return place


def _named(named: object) -> Types:
    names = {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
    if "number" in names:
        names.add("integer")
    return frozenset(names) if names and names <= ANY else ANY
