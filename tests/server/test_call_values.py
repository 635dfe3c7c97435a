"""What a parameter's text becomes by its schema."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.call_values import ANY, as_json, types_of

DEFINITIONS = {
    "$defs": {
        "line": {"type": "integer"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/line"}, {"type": "null"}]},
        "a/b~c": {"type": "boolean"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/tree"}]},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": "wizard"}, ANY),
        ({"type": []}, ANY),
        ({}, ANY),
        (True, ANY),
        ({"description": "anything"}, ANY),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "number", "null"}),
        ({"type": "string", "enum": ["a", None]}, {"string"}),
        ({"const": [1]}, {"array"}),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]}, {"string", "array"}),
        ({"oneOf": [{"type": "boolean"}, {"anyOf": [{"type": "null"}]}]}, {"boolean", "null"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, {"null"}),
        ({"allOf": [{"type": "string"}, {"type": "array"}]}, ANY),
        ({"properties": {"a": {}}}, {"object"}),
        ({"items": {"type": "string"}}, {"array"}),
        ({"$ref": "#/$defs/line"}, {"integer"}),
        ({"$ref": "#/$defs/maybe"}, {"integer", "null"}),
        ({"$ref": "#/$defs/a~1b~0c"}, {"boolean"}),
        ({"$ref": "#/%24defs/line"}, {"integer"}),
        ({"$ref": "#/$defs/tree"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "#/$defs/missing"}, ANY),
        ({"$ref": "https://example.com/x.json"}, ANY),
        ({"$ref": "#/$defs/line", "type": "string"}, ANY),
    ],
)
def test_types_are_those_that_the_schema_allows(schema: Any, types: Any) -> None:
    assert types_of({"type": "object", "properties": {"a": schema}, **DEFINITIONS}, "a") == types


def test_parameters_that_are_not_listed_follow_additional_properties() -> None:
    assert types_of({"additionalProperties": {"type": "integer"}}, "a") == {"integer"}
    assert types_of({"properties": {"b": {"type": "string"}}, "additionalProperties": False}, "a") == ANY
    assert types_of({}, "a") == ANY


def test_parameters_may_be_a_reference_themselves() -> None:
    schema = {"$ref": "#/$defs/args", "$defs": {"args": {"properties": {"a": {"type": "null"}}}}}
    assert types_of(schema, "a") == {"null"}


def test_references_to_one_another_take_no_time() -> None:
    names = [f"n{index}" for index in range(200)]
    every = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    schema = {"properties": {"a": every}, "$defs": dict.fromkeys(names, every)}
    assert types_of(schema, "a") == ANY


def test_deep_schemas_are_anything() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(500):
        schema = {"anyOf": [schema]}
    assert types_of({"properties": {"a": schema}}, "a") == ANY
    chain = {f"n{index}": {"$ref": f"#/$defs/n{index + 1}"} for index in range(500)}
    assert types_of({"properties": {"a": {"$ref": "#/$defs/n0"}}, "$defs": chain}, "a") == ANY


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, "5"),
        (" 5\n", {"integer"}, " 5\n"),
        ("5.0", {"integer"}, "5.0"),
        ("5.5", {"integer"}, '"5.5"'),
        ("5", {"number", "integer"}, "5"),
        ("1e400", {"number", "integer"}, "1e400"),
        ("NaN", {"number", "integer"}, '"NaN"'),
        ("05", {"integer"}, '"05"'),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, '"True"'),
        ("1", {"boolean"}, '"1"'),
        ("null", {"string", "null"}, "null"),
        ("null", {"string"}, '"null"'),
        ("5", {"string"}, '"5"'),
        ("5", {"string", "integer"}, "5"),
        ("five", {"string", "integer"}, '"five"'),
        ('"five"', {"string", "integer"}, '"\\"five\\""'),
        ('{"b": 1, "a" :[ ]}', {"object"}, '{"b": 1, "a" :[ ]}'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ("[1]", {"object"}, '"[1]"'),
        ("[" * 500 + "]" * 500, {"array"}, '"' + "[" * 500 + "]" * 500 + '"'),
        ("", ANY, '""'),
        ("a \u2028 \U0001f600", ANY, '"a \u2028 \U0001f600"'),
    ],
)
def test_text_is_kept_as_json_of_its_types_or_becomes_a_string(text: str, types: Any, value: str) -> None:
    assert as_json(text, frozenset(types)) == value


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.sets(st.sampled_from(sorted(ANY)), min_size=1))
def test_every_text_is_valid_json(text: str, types: set[str]) -> None:
    value = json.loads(as_json(text, frozenset(types)))
    assert value == text or json.loads(text) == value
