"""Schemas, patterns and grammars made to cost much: refused, or compiled within bounds, and the server well after each.

Nothing here looks at a clock: what takes too long does not come to an end within the test's time.
"""

import json
from typing import Any

import httpx
import pytest
from http_helpers import ask

from engine.chat import load_chat_format
from engine.errors import BadRequestError
from engine.models.locate import ASSETS
from engine.request import MAX_GRAMMAR_BYTES, Grammar
from server.errors import ApiError
from server.schemas import DEEPEST
from server.tool_grammar import answer_grammar
from server.tools import Tool, Tools

chat = load_chat_format(ASSETS / "demo-13m")
STEPS = 24  # of an answer, through which the masks of a hostile grammar are made


def nested(levels: int, word: str = "items") -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = (
            {"type": "array", "items": schema} if word == "items" else {"type": "object", "properties": {"a": schema}}
        )
    return schema


def enum(values: int) -> Any:
    return {"enum": [f"value {number}" for number in range(values)]}


def optional(properties: int) -> Any:
    return {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(properties)}}


def doubling(levels: int) -> Any:
    defs: Any = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}


def product(levels: int) -> Any:
    both = {"anyOf": [{"properties": {"a": {"minLength": n}}} for n in range(4)]}
    return {"type": "object", "allOf": [both] * levels}


def pattern(text: str) -> Any:
    return {"type": "string", "pattern": text}


HOSTILE: dict[str, Any] = {
    "400 levels of lists": nested(400),
    "64 levels of objects": nested(64, "properties"),
    "62 levels of lists": nested(62),
    "an enum of 50,000": enum(50_000),
    "an enum of 4,000": enum(4_000),
    "an enum of one long text": {"enum": ["x" * 20_000]},
    "600 optional properties": optional(600),
    "1,200 optional properties": optional(1_200),
    "properties of one name prefix": {"type": "object", "properties": {"a" * n: {} for n in range(1, 300)}},
    "references that double": doubling(12),
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "itself": {"$ref": "#"},
    "itself in every list": {"type": "array", "items": {"$ref": "#"}},
    "itself in many properties": {"type": "object", "properties": {f"p{n}": {"$ref": "#"} for n in range(50)}},
    "a product of alternatives": product(8),
    "repeats of repeats": pattern("(a{1,1000}){1,1000}"),
    "repeats of repeats of repeats": pattern("((a{1,100}){1,100}){1,100}"),
    "a pattern with 2 to the 200 states": pattern("(a|b)*a(a|b){200}"),
    "a long pattern": pattern("(" + "|".join(f"word{n}[a-z]*" for n in range(3_000)) + ")"),
    "classes of all letters": pattern("^(\\p{L}|\\p{N}){1,5000}$"),
    "a repeat without a bound": {"type": "string", "minLength": 10**9},
    "a length of 10 to the 30": {"type": "string", "maxLength": 10**30},
    "a list of a million": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6, "maxItems": 10**6},
    "a number with 5,000 digits": {"type": "integer", "minimum": 0, "maximum": 10**300},
    "divisors of many digits": {"type": "number", "multipleOf": 1e-30},
    "a tuple of 2,000": {"type": "array", "prefixItems": [{"type": "integer"}] * 2_000, "items": False},
    "look-around": pattern("(?=a)(?!b)c"),
    "a back reference": pattern("(a)\\1"),
    "half a pattern": pattern("[a"),
    "a pattern with a line break": pattern("a\n/b\\"),
    "a reference to another host": {"$ref": "http://127.0.0.1:1/schema.json"},
    "a reference to a file": {"$ref": "file:///etc/passwd"},
    "directions to the compiler": {"x-guidance": {"lenient": True, "whitespace_pattern": ".*"}, "not": {}},
    "words of no type": {"type": 5, "enum": "x", "properties": [], "required": "y", "items": 7, "anyOf": {}},
    "empty alternatives": {"anyOf": []},
    "nothing": {"not": {}},
    "false": {"type": "object", "properties": {"a": False}, "required": ["a"]},
}  # fmt: skip


def compiled(given: Tools, answer: Grammar | None) -> tuple[Grammar | None, ApiError | BadRequestError | None]:
    try:
        return answer_grammar(chat, 6144, given, answer), None
    except (ApiError, BadRequestError) as error:
        return None, error


def outcome(given: Tools, answer: Grammar | None) -> str:
    """Compile as a request would, then let the masks of an answer be made; what came of it, in a word."""
    made, error = compiled(given, answer)
    if error is not None:
        assert len(str(error)) < 1000
        assert error.param
        assert not isinstance(error, ApiError) or error.status == 400
        return "refused"
    assert made is not None
    assert len(made.text.encode()) <= MAX_GRAMMAR_BYTES
    place = chat.grammars(6144).compile(made, ())
    for _ in range(STEPS):
        if place.error is not None:
            return "ended with an error"
        if place.complete:
            break
        mask = place.masks(())[0]
        passing = [token for token in range(6144) if mask[token >> 3] >> (token & 7) & 1 and token not in chat.eos_ids]
        forced = place.forced()
        if not passing:
            break
        place.take(forced[0] if forced else passing[len(passing) // 2])
    return "kept to"


def called(schema: Any, strict: bool) -> Tools:
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": schema.get("$defs", {})}
    return Tools((Tool("f", {}, parameters, strict=strict),), "required", parallel=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_or_kept_to(name: str) -> None:
    """As the format of an answer, and as the schema of a tool in both styles, strict and not."""
    schema = HOSTILE[name]
    text = Grammar("json_schema", json.dumps(schema))
    as_answer = outcome(Tools(), text)
    as_tool = {outcome(called(schema, strict), None) for strict in (True, False)}
    assert {as_answer, *as_tool} <= {"refused", "kept to", "ended with an error"}
    if name in REFUSED:
        assert as_answer == "refused"


REFUSED = {
    "400 levels of lists", "an enum of 50,000", "references in a circle", "itself", "look-around", "a back reference",
    "half a pattern", "a reference to another host", "a reference to a file", "directions to the compiler",
    "words of no type", "nothing", "false", "empty alternatives",
}  # fmt: skip


ENDLESS: dict[str, Any] = {
    "patterns that must all match": {"allOf": [pattern(f"x{{{n}}}.*y{{{n}}}") for n in range(1, 40)], "type": "string"},
    "many divisors": {"type": "integer", "multipleOf": 999_983},
    "a product of divisors": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 89, 83, 79)]},
}


@pytest.mark.parametrize(
    "name", [name if name == "many divisors" else pytest.param(name, marks=pytest.mark.slow) for name in ENDLESS]
)
def test_what_would_not_come_to_an_end_is_ended_and_the_next_grammar_is_well(name: str) -> None:
    made, error = compiled(Tools(), Grammar("json_schema", json.dumps(ENDLESS[name])))
    assert made is None
    assert "too complex" in str(error)
    assert compiled(Tools(), Grammar("json_schema", '{"enum": [1, 2]}'))[1] is None


def test_schemas_may_be_as_deep_as_the_limit_and_no_deeper(client: httpx.Client) -> None:
    for levels, status in ((DEEPEST - 2, 200), (DEEPEST, 400)):
        format = {"type": "json_schema", "json_schema": {"name": "deep", "schema": nested(levels)}}
        response = ask(client, response_format=format)
        assert response.status_code == status, response.text
        function = {"name": "f", "parameters": nested(levels, "properties"), "strict": True}
        tool = {"type": "function", "function": function}
        response = ask(client, tools=[tool])
        if status == 400:
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "tools[0].function.parameters"


def test_schemas_that_are_too_large_are_refused_with_their_size(client: httpx.Client) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "large", "schema": enum(9_000)}}
    response = ask(client, response_format=format)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("response_format")
    made, error = compiled(called(enum(9_000), strict=True), None)
    assert made is None
    assert error is not None
    assert error.param == "tools"
    assert str(MAX_GRAMMAR_BYTES) in str(error)


def test_large_tools_that_are_called_freely_are_no_matter(client: httpx.Client) -> None:
    """97 kB of tools is what some agents send with each request; others choke on their schemas."""
    properties = {f"p{n}": {"type": "string", "pattern": "\\d(?=x)", "description": "word " * 100} for n in range(180)}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    response = ask(client, tools=[{"type": "function", "function": function}], max_tokens=1)
    assert response.status_code in (200, 400)
    if response.status_code == 400:  # only because so much text does not fit this model's context
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("kind", ["regex", "lark"])
@pytest.mark.parametrize(
    "text",
    [
        "(a{1,1000}){1,1000}", "start: start start | \"a\"", "start: a\na: b\nb: a", "start: A\nA: /(a|b)*a(a|b){300}/",
        "start: %json {\"$ref\": \"#\"}", "}", "start: \"a\"\n}\nr0: \"x\"", "start: \"" + "a" * 70_000 + "\"",
        "\\", "/", "start: <[0-99999]>", "start: <[*]>*", "start: @other", "start: a{1,1000000}\na: \"x\"",
    ],
)  # fmt: skip
def test_a_hostile_grammar_of_a_custom_tool_is_refused_or_kept_to(kind: Any, text: str) -> None:
    for choice in ("auto", "required"):
        given = Tools((Tool("f", {}, {}, grammar=Grammar(kind, text)), Tool("g", {})), choice)  # type: ignore[arg-type]
        assert outcome(given, None) in ("refused", "kept to", "ended with an error")


def test_the_server_is_well_after_each(client: httpx.Client) -> None:
    for name in ("an enum of 4,000", "600 optional properties", "references that double", "words of no type", "itself"):
        format = {"type": "json_schema", "json_schema": {"name": "x", "schema": HOSTILE[name]}}
        assert ask(client, response_format=format).status_code in (200, 400)
        tool = {"type": "function", "function": {"name": "f", "parameters": HOSTILE[name], "strict": True}}
        assert ask(client, tools=[tool]).status_code in (200, 400)
    assert ask(client).status_code == 200
