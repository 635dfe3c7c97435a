"""Answers held to tool calls: what may be written, what the parser then reads, and that a model keeps to it."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import ask, frames

from engine.chat import ChatFormat, load_chat_format
from engine.collect import complete
from engine.grammar import Constraint, GrammarCompiler
from engine.handle import EngineHandle
from engine.models.locate import ASSETS
from engine.request import Grammar, Request, Sampling
from engine.text import TextStream, ToolStyle
from server.errors import ApiError
from server.pieces import CallArguments, CallBegin, Text
from server.tool_calls import CallReader
from server.tool_grammar import answer_grammar, grammar
from server.tools import Tool, Tools

VOCAB = 6144
chat = load_chat_format(ASSETS / "demo-13m")
OPEN, CLOSE = chat.tool_ids or (-1, -1)
BEHIND = chat.render([{"role": "user", "content": "x"}], thinking=False)
SPELLINGS: dict[bytes, list[int]] = {}
for each in set(range(VOCAB)) - set(chat.special_ids):
    SPELLINGS.setdefault(chat.token_bytes(each), []).append(each)
CLIENTS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "cases" / "client_tools.json").read_text(encoding="utf-8")
)
STYLES: list[ToolStyle] = ["xml", "json"]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Mapping[str, Any] | None = None, **rest: Any) -> Tool:
    shown = {"type": "function", "function": {"name": name, "parameters": parameters or {}}}
    return Tool(name, shown, parameters or {}, **rest)


def tools(*offered: Tool, choice: Any = "required", **rest: Any) -> Tools:
    return Tools(offered, choice, **rest)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(chat, VOCAB)


def start(given: Tools, style: ToolStyle, answer: Grammar | None = None) -> Constraint:
    made = grammar(given, style, chat.tool_ids, answer)
    assert made is not None
    return compiler().compile(made, BEHIND)


def passes(constraint: Constraint, token: int) -> bool:
    return bool(constraint.masks(())[0][token >> 3] >> (token & 7) & 1)


def taken(constraint: Constraint, text: str) -> bool:
    """Take a text, its tags as tokens, spelled as the grammar would have it; False where it can not."""
    for piece in re.split("(<tool_call>|</tool_call>)", text):
        tag = {"<tool_call>": OPEN, "</tool_call>": CLOSE}.get(piece)
        if tag is not None:
            if not passes(constraint, tag):
                return False
            constraint.take(tag)
        elif not letters_taken(constraint, piece.encode()):
            return False
        assert constraint.error is None, constraint.error
    return True


def letters_taken(constraint: Constraint, left: bytes) -> bool:
    """Take a text without tags, each time by the longest token that passes."""
    while left:
        mask = constraint.masks(())[0]
        fitting = [
            token
            for length in range(min(len(left), 24), 0, -1)
            for token in SPELLINGS.get(left[:length], ())
            if mask[token >> 3] >> (token & 7) & 1
        ]
        if not fitting:
            return False
        constraint.take(fitting[0])
        left = left[len(chat.token_bytes(fitting[0])) :]
    return True


def may_end(constraint: Constraint) -> bool:
    return constraint.complete or any(passes(constraint, end) for end in chat.eos_ids)


def accepts(given: Tools, style: ToolStyle, text: str, answer: Grammar | None = None) -> bool:
    constraint = start(given, style, answer)
    return taken(constraint, text) and may_end(constraint)


def xml(name: str, *arguments: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def js(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --- required


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (xml("weather", ("city", "Paris")), True),
        (xml("weather", ("city", "")), True),
        (xml("weather", ("city", "two\nlines, a < b, </parameter> and <parameter=x"), ("unit", "f")), True),
        (xml("weather", ("city", "Paris"), ("days", "3"), ("unit", "c")), True),
        (xml("now"), True),
        (xml("now") + "\n" + xml("now") + xml("weather", ("city", "x")), True),
        (xml("now", ("x", "1")), False),
        (xml("weather"), False),
        (xml("weather", ("days", "3")), False),
        (xml("weather", ("city", "Paris"), ("days", "30")), False),
        (xml("weather", ("city", "Paris"), ("days", "3.5")), False),
        (xml("weather", ("city", "Paris"), ("unit", "k")), False),
        (xml("weather", ("city", "Paris"), ("unit", "c"), ("days", "3")), False),
        (xml("weather", ("city", "Paris"), ("more", "x")), False),
        (xml("rain"), False),
        ("Sure. " + xml("now"), False),
        (xml("now") + " Done.", False),
        (js("now", "{}"), False),
        ("", False),
    ],
)
def test_a_required_call_in_xml(text: str, fits: bool) -> None:
    assert accepts(tools(tool("weather", WEATHER), tool("now")), "xml", text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (js("weather", '{"city": "Paris"}'), True),
        (js("weather", '{"city":"Paris","days":3,"unit":"c"}'), True),
        (js("weather", '{"city": "</tool> \\n \\" é"}'), True),
        (js("now", "{}") + "\n" + js("now", "{}"), True),
        (js("now", '{"x": 1}'), False),
        (js("weather", "{}"), False),
        (js("weather", '{"city": 1}'), False),
        (js("weather", '{"city": "Paris", "days": 10}'), False),
        (js("rain", "{}"), False),
        ("Sure. " + js("now", "{}"), False),
        (xml("now"), False),
    ],
)
def test_a_required_call_in_json(text: str, fits: bool) -> None:
    assert accepts(tools(tool("weather", WEATHER), tool("now")), "json", text) is fits


@pytest.mark.parametrize("style", STYLES)
def test_only_what_is_named_may_be_called_and_only_once_where_so_asked(style: ToolStyle) -> None:
    now, then = (xml(name) if style == "xml" else js(name, "{}") for name in ("now", "then"))
    some = tools(tool("now"), tool("then"), only=frozenset({"now"}))
    assert accepts(some, style, now + now)
    assert not accepts(some, style, then)
    alone = start(replace(some, parallel=False), style)
    assert taken(alone, now)
    assert alone.complete


@pytest.mark.parametrize("style", STYLES)
def test_tags_are_tokens_and_no_letters_are_tags(style: ToolStyle) -> None:
    constraint = start(tools(tool("now")), style)
    assert {t for t in range(VOCAB) if passes(constraint, t)} == {OPEN}
    constraint = start(tools(tool("say", {"type": "object", "properties": {"x": {}}, "required": ["x"]})), style)
    inside = (
        "<tool_call>\n<function=say>\n<parameter=x>\n"
        if style == "xml"
        else '<tool_call>\n{"name": "say", "arguments": {"x": "'
    )
    assert taken(constraint, inside)
    assert not any(passes(constraint, special) for special in chat.special_ids)
    assert letters_taken(constraint, b"</tool_call><tool_call>")


# --- what a value may be in XML


VALUES: dict[str, tuple[Any, list[str], list[str]]] = {
    "a string": ({"type": "string"}, ["", "5", "{", " x \n"], []),
    "anything": ({}, ["", "5", "{"], []),
    "an enum": ({"type": "string", "enum": ["red", "dark red"]}, ["red", "dark red"], ["blue", "", "red "]),
    "a constant": ({"const": "on"}, ["on"], ["off", '"on"']),
    "an enum of all kinds": ({"enum": ["a", 5, None, True]}, ["a", "5", "null", "true"], ["6", '"a"', "b"]),
    "texts that would be read as numbers": ({"enum": ["5", 6]}, ["6"], ["5", "7"]),
    "a pattern": ({"type": "string", "pattern": "^[a-z]{2,3}$"}, ["ab", "abc"], ["a", "abcd", "AB"]),
    "a pattern found anywhere": ({"type": "string", "pattern": "b+"}, ["abc", "b"], ["ac"]),
    "a pattern at the end": ({"type": "string", "pattern": "b$"}, ["ab"], ["ba"]),
    "digits of ECMA": ({"type": "string", "pattern": "^\\d$"}, ["1"], ["١"]),
    "an anchor in a class": ({"type": "string", "pattern": "^[$^]\\$$"}, ["$$", "^$"], ["$"]),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é漢x"], ["a", "abcd"]),
    "lengths and a pattern": ({"type": "string", "maxLength": 2, "pattern": "^a+$"}, ["a", "aa"], ["aaa", "b"]),
    "a date": ({"type": "string", "format": "date"}, ["2026-02-28"], ["2026-2-28", "today"]),
    "a uuid": ({"type": "string", "format": "uuid"}, ["01234567-89ab-cdef-0123-456789abcdef"], ["0123"]),
    "an integer": ({"type": "integer"}, ["5", "-7"], ["5.5", "x", '"5"', ""]),
    "a number": ({"type": "number"}, ["5", "-7.5e3"], ["x"]),
    "a boolean": ({"type": "boolean"}, ["true", "false"], ["True", "yes"]),
    "a list": ({"type": "array", "items": {"type": "string"}}, ["[]", '["a", "b"]'], ["a", "[1]"]),
    "an object": (
        {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"], "additionalProperties": False},
        ['{"k": 1}'],
        ["{}", '{"k": "1"}', "k"],
    ),
    "a string or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["null", "x", "5"], []),
    "types in a list": ({"type": ["string", "null"]}, ["null", "x"], []),
    "an enum or null": ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", "null"], ["c"]),
    "a number or null": ({"anyOf": [{"type": "number"}, {"type": "null"}]}, ["1", "null"], ["x"]),
    "a string or a bound integer": (
        {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 5}]}, ["x", "5", "x9"], ["6", "99"]
    ),
    "a string or a list of strings": (
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        ["x", '["x"]', "x [1]"],
        ["[1]", " [1]", "{}"],
    ),
    "a reference to an enum": ({"$ref": "#/$defs/colour"}, ["red"], ["blue"]),
    "a reference alone among all": ({"allOf": [{"$ref": "#/$defs/colour"}]}, ["red"], ["blue"]),
    "a reference to itself": ({"$ref": "#/$defs/tree"}, ["[]", "[[],[[]]]"], ["[1]", "x"]),
    "a list of references": ({"type": "array", "items": {"$ref": "#/$defs/colour"}}, ['["red"]'], ['["blue"]', "red"]),
}  # fmt: skip
DEFS = {"colour": {"enum": ["red", "green"]}, "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_in_xml_fits_its_schema(name: str) -> None:
    schema, good, bad = VALUES[name]
    parameters = {
        "type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False, "$defs": DEFS
    }  # fmt: skip
    for strict in (True, False):
        given = tools(tool("f", parameters, strict=strict))
        for value in good:
            assert accepts(given, "xml", xml("f", ("v", value))), value
        for value in bad:
            assert not accepts(given, "xml", xml("f", ("v", value))), value


def test_parameters_that_the_schema_does_not_name_come_last_and_are_typed_by_it() -> None:
    open_ended = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = tools(tool("f", open_ended))
    assert accepts(given, "xml", xml("f", ("a", "1"), ("b", "any text"), ("c", "")))
    assert accepts(given, "xml", xml("f", ("b", "x")))
    assert not accepts(given, "xml", xml("f", ("b", "x"), ("a", "not a number")))
    typed = tools(tool("f", open_ended | {"additionalProperties": {"type": "boolean"}}))
    assert accepts(typed, "xml", xml("f", ("b", "true"), ("c", "false")))
    assert not accepts(typed, "xml", xml("f", ("b", "x")))


def test_a_required_parameter_that_the_schema_does_not_name_must_come() -> None:
    given = tools(tool("f", {"type": "object", "required": ["x"]}))
    assert accepts(given, "xml", xml("f", ("x", "1")))
    assert not accepts(given, "xml", xml("f", ("y", "1")))


def test_a_schema_that_is_a_reference_is_followed() -> None:
    parameters = {"$ref": "#/$defs/Input", "$defs": {"Input": WEATHER}}
    assert accepts(tools(tool("f", parameters)), "xml", xml("f", ("city", "x"), ("days", "2")))
    assert not accepts(tools(tool("f", parameters)), "xml", xml("f", ("days", "2")))


# --- auto


def test_auto_has_no_grammar_whatever_the_schemas_are() -> None:
    hostile = tool("h", {"type": "object", "properties": {"x": {"pattern": "(?=a)\\1", "if": {}, "type": "thing"}}})
    for client in CLIENTS.values():
        offered = [hostile, *(tool(each["name"], each["parameters"]) for each in client)]
        assert grammar(tools(*offered, choice="auto"), "xml", chat.tool_ids) is None
        assert grammar(tools(*offered, choice="none"), "xml", chat.tool_ids) is None
    assert grammar(Tools(), "xml", chat.tool_ids) is None


@pytest.mark.parametrize("style", STYLES)
def test_under_auto_calls_of_strict_tools_fit_and_all_else_is_free(style: ToolStyle) -> None:
    given = tools(tool("weather", WEATHER, strict=True), tool("loose", WEATHER), choice="auto")
    good, bad, loose, unknown = (
        (xml("weather", ("city", "x")), xml("weather", ("days", "1")), xml("loose", ("q", "{")), xml("rain"))
        if style == "xml"
        else (js("weather", '{"city": "x"}'), js("weather", '{"days": 1}'), js("loose", "{broken"), js("rain", "{}"))
    )
    assert accepts(given, style, "Nothing to call. <function=weather> \n\n é漢")
    assert accepts(given, style, f"First {good}\nthen {loose} and {good} done.")
    for refused in (bad, unknown, " " + bad, good + bad):
        assert not accepts(given, style, refused)
    assert not accepts(replace(given, parallel=False), style, good + good)


def test_free_text_may_have_every_token_that_it_may_have_without_a_grammar() -> None:
    constraint = start(tools(tool("weather", WEATHER, strict=True), choice="auto"), "xml")
    assert all(passes(constraint, token) for token in range(VOCAB))


def test_where_not_all_tools_may_be_called_calls_are_of_those_that_may() -> None:
    given = tools(tool("now"), tool("then"), choice="auto", only=frozenset({"now"}))
    assert accepts(given, "xml", "Well. " + xml("now", ("any", "thing")))
    assert not accepts(given, "xml", xml("then"))


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_in_a_format_is_that_or_calls(style: ToolStyle) -> None:
    given = tools(tool("weather", WEATHER), choice="auto")
    schema = Grammar("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
    call = xml("weather", ("whatever", "x")) if style == "xml" else js("weather", "{}")
    for answer in (schema, Grammar("json")):
        assert accepts(given, style, '{"a": 1}', answer)
        assert accepts(given, style, call, answer)
        for text in ("Hello.", '{"a": 1}' + call, "Well. " + call):
            assert not accepts(given, style, text, answer)
    assert not accepts(given, style, '{"a": "x"}', schema)
    assert grammar(replace(given, choice="none"), style, chat.tool_ids, schema) == schema
    assert not accepts(replace(given, choice="required"), style, '{"a": 1}', schema)


# --- tools whose text has a grammar


APPLY_PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF
%import common.LF
"""
PATCH = "*** Begin Patch\n*** Add File: a.py\n+x = 1\n+\n*** End Patch"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_text_of_a_custom_tool_keeps_to_its_grammar(choice: str) -> None:
    lark = tools(tool("apply_patch", grammar=Grammar("lark", APPLY_PATCH)), choice=choice)
    assert accepts(lark, "xml", xml("apply_patch", ("input", PATCH)))
    assert not accepts(lark, "xml", xml("apply_patch", ("input", PATCH.replace("+x", "x"))))
    regex = tools(tool("stamp", grammar=Grammar("regex", r"\d{4}-\d{2}|[^a]{3}")), choice=choice)
    assert accepts(regex, "xml", xml("stamp", ("input", "2026-01")))
    assert accepts(regex, "xml", xml("stamp", ("input", "\n\n\n")))
    assert not accepts(regex, "xml", xml("stamp", ("input", "2026")))
    assert accepts(regex, "json", js("stamp", '{"input": "2026-01"}'))
    assert not accepts(regex, "json", js("stamp", '{"input": "2026"}'))


# --- refusals


STRICT_REFUSALS: dict[str, tuple[ToolStyle, Any, str]] = {
    "a keyword that is not enforced": ("json", {"type": "object", "if": {}}, '"if"'),
    "a keyword that is not enforced in XML": ("xml", {"type": "object", "if": {}}, "if can not be enforced"),
    "a format that is not known": ("xml", {"properties": {"a": {"type": "string", "format": "x-y"}}}, "x-y"),
    "look-around": ("xml", {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "(?=a)b"),
    "look-around in JSON": ("json", {"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "look"),
    "anchors in the middle": ("xml", {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "^a|b$"),
    "a string beside other rules": (
        "xml", {"properties": {"a": {"anyOf": [{"type": "string"}], "not": {"const": "x"}}}}, "not"
    ),
    "rules without a type": ("xml", {"properties": {"a": {"minLength": 3}}}, "minLength"),
    "a reference to nowhere": ("xml", {"properties": {"a": {"$ref": "#/$defs/none"}}}, "nowhere"),
    "a name that can not be written": ("xml", {"properties": {"a>b": {}}}, "a>b"),
}  # fmt: skip


def refusal(given: Tools, style: ToolStyle, answer: Grammar | None = None) -> ApiError:
    class Other(ChatFormat):
        tool_style = style  # type: ignore[assignment]

    other = Other(chat._tokenizer)
    with pytest.raises(ApiError) as error:
        answer_grammar(other, VOCAB, given, answer)
    assert error.value.status == 400
    return error.value


@pytest.mark.parametrize("name", STRICT_REFUSALS)
def test_what_a_strict_tool_can_not_be_held_to_is_refused_with_its_place_and_cause(name: str) -> None:
    style, parameters, cause = STRICT_REFUSALS[name]
    given = tools(tool("fine", WEATHER, strict=True), tool("f", parameters, strict=True), choice="auto")
    error = refusal(given, style)
    assert error.param == "tools[1].function.parameters"
    assert cause in error.message
    assert len(error.message) < 600
    assert "start:" not in error.message, "the grammar is ours"


@pytest.mark.parametrize("style", STYLES)
def test_a_tool_that_is_not_strict_is_held_to_what_of_its_rules_can_be_kept(style: ToolStyle) -> None:
    odd = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "url": {
                "type": "string",
                "format": "x-url",
                "default": "x",
                "pattern": "(?=a)b" if style == "xml" else "b",
            },
            "n": {"type": "integer", "exclusiveMinimum": 0, "title": "N"},
            "map": {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
        },
        "required": ["url", "n"],
        "dependentRequired": {"n": ["url"]},
    }
    given = tools(tool("f", odd))
    good = xml("f", ("url", "b"), ("n", "1"), ("map", '{"b": 1}'))
    bad = xml("f", ("url", "b"), ("n", "0"))
    if style == "json":
        good, bad = js("f", '{"url": "b", "n": 1, "map": {"b": 1}}'), js("f", '{"url": "b", "n": 0}')
    assert accepts(given, style, good)
    assert not accepts(given, style, bad)


def test_other_refusals_name_their_field() -> None:
    lark = Grammar("lark", "start: missing")
    assert refusal(tools(tool("f", grammar=lark)), "xml").param == "tools[0].function.parameters"
    assert (
        refusal(tools(tool("f", grammar=Grammar("lark", APPLY_PATCH))), "json").param == "tools[0].function.parameters"
    )
    assert refusal(tools(tool("f", {"type": "array"})), "xml").param == "tools[0].function.parameters"
    assert refusal(tools(tool("f"), choice="auto"), "xml", Grammar("regex", "a")).param == "tools"
    with pytest.raises(ApiError) as error:
        grammar(tools(tool("f")), None, None)
    assert error.value.param == "tool_choice"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("style", STYLES)
def test_the_tools_of_real_clients_can_be_required(client: str, style: ToolStyle) -> None:
    """All at once, and each of them alone, in well under the size that is allowed."""
    offered = [tool(each["name"], each["parameters"]) for each in CLIENTS[client]]
    made = grammar(tools(*offered), style, chat.tool_ids)
    assert made is not None
    assert len(made.text) < 16_000
    constraint = compiler().compile(made, BEHIND)
    assert constraint.error is None
    strict = grammar(tools(*(replace(each, strict=True) for each in offered), choice="auto"), style, chat.tool_ids)
    assert strict is not None
    compiler().compile(strict, BEHIND)


# --- the parser reads what the grammar lets pass


WALKED: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 1, "maximum": 99},
    "mode": {"enum": ["on", "off", 3, None]},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "boolean"}}]},
    "code": {"type": "string", "pattern": "^[<>/=a-z\\n]{1,20}$"},
    "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    "last": {"type": "string", "maxLength": 12},
}
FRAGMENTS = [
    "</parameter>", "\n</parameter>\n", "<parameter=", "<parameter=count>\n", "</function>", "\n</function>\n",
    "<tool_call>", "</tool_call>",
    "\n", "a", "5", "null", "true", "[", "]", "{", "}", '"', ",", "\\", "=last>\n", " ", "é", "on",
]  # fmt: skip
CLOSERS = ['"', "]", "}", "\n</parameter>\n</function>\n", "5", "\n</parameter>\n", "a", "<parameter=", "\n"]


def walked(constraint: Constraint, draw: random.Random) -> list[int] | None:
    """Tokens of a random answer, of fragments that may be taken for tags wherever the grammar lets them stand."""
    made: list[int] = []
    while not constraint.complete and len(made) < 600:
        spelled = [chat.encode_as_text(f) for f in (CLOSERS if len(made) > 120 else draw.sample(FRAGMENTS, 12))]
        tags = [[tag] for tag in (OPEN, CLOSE)]
        way = next((ids for ids in [*tags, *spelled] if passes(constraint, ids[0])), None)
        if way is None:
            way = [draw.choice([t for t in range(VOCAB) if passes(constraint, t) and t not in chat.eos_ids])]
        for token in way:
            if constraint.complete or not passes(constraint, token):
                break
            constraint.take(token)
            assert constraint.error is None, constraint.error
            made.append(token)
    return made if constraint.complete else None


def read(ids: Sequence[int], style: ToolStyle, given: Tools) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls that the server reads out of an answer."""
    stream, reader = TextStream(chat), CallReader(style, given.named())
    pieces = []
    spans = [span for token in ids for span in stream.push(token)] + stream.finish()
    for span in spans:
        if span.kind == "tool":
            pieces += (reader.open() if span.opens or not reader.inside else []) + reader.feed(span.text)
        else:
            pieces += (reader.close() if reader.inside else []) + reader.feed(span.text)
    pieces += reader.stop()
    names = [piece.name for piece in pieces if isinstance(piece, CallBegin)]
    arguments = ["" for _ in names]
    for piece in pieces:
        if isinstance(piece, CallArguments):
            arguments[piece.index] += piece.text
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    return text, list(zip(names, arguments, strict=True))


def problems(value: Any, schema: Any) -> Iterator[str]:
    """What is wrong with a value, by the few keywords that these tests use."""
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    if "anyOf" in schema and not any(not list(problems(value, each)) for each in schema["anyOf"]):
        yield f"{value!r} fits none"
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        yield f"{value!r} is not in the enum"
    if "type" in schema and type(value) is not kinds[schema["type"]]:
        yield f"{value!r} is no {schema['type']}"
        return
    if isinstance(value, str):
        if not re.search(schema.get("pattern", ""), value):
            yield f"{value!r} does not match"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{value!r} is too long"
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{value!r} is out of range"
    if isinstance(value, list):
        for each in value:
            yield from problems(each, schema.get("items", {}))
    if isinstance(value, dict) and "properties" in schema:
        if set(value) - set(schema["properties"]) or set(schema["required"]) - set(value):
            yield f"{list(value)} are not its properties"
        for key in set(value) & set(schema["properties"]):
            yield from problems(value[key], schema["properties"][key])


@pytest.mark.parametrize("style", STYLES)
def test_whatever_passes_the_grammar_is_read_as_calls_that_fit(style: ToolStyle) -> None:
    draw, judged = random.Random(5), 0
    for _ in range(30):
        names = draw.sample(sorted(WALKED), draw.randint(1, 4))
        schema = {
            "type": "object",
            "properties": {name: WALKED[name] for name in names},
            "required": draw.sample(names, draw.randint(0, len(names))),
            "additionalProperties": False,
        }
        given = tools(tool("f", schema, strict=True), tool("g"), parallel=False)
        ids = walked(start(given, style), draw)
        if ids is None:
            continue
        judged += 1
        text, calls = read(ids, style, given)
        assert text == "", chat.decode(ids)
        ((name, arguments),) = calls
        expected = {"f": schema, "g": {"properties": {}, "required": []}}[name]
        assert not list(problems(json.loads(arguments), expected)), chat.decode(ids)
    assert judged > 15


# --- a model that was never taught to


TIGHT = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": TIGHT}}
OTHER = {"type": "function", "function": {"name": "stop_clock"}}


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"]["tool_calls"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_a_required_call_is_the_same_at_any_depth(demo_engine: EngineHandle) -> None:
    given = tools(tool("weather", TIGHT), parallel=False)
    made = answer_grammar(demo_engine.chat, demo_engine.model.vocab_size, given, None)
    for seed in range(2):
        for thinking in (False, True):
            prompt = demo_engine.chat.render([{"role": "user", "content": "Rain?"}], thinking=thinking)
            request = Request(prompt, Sampling(), max_tokens=400, seed=seed, grammar=made, depth=0)
            plain = complete(demo_engine, request)
            drafted = complete(demo_engine, replace(request, depth=3, id=f"d{seed}{thinking}"))
            assert drafted.ids == plain.ids
            assert plain.finish_reason == drafted.finish_reason == "stop"
            assert drafted.stats.steps < plain.stats.steps
            start_of_call = plain.ids.index(OPEN)
            text, ((name, arguments),) = read(plain.ids[start_of_call:], "xml", given)
            assert (text, name) == ("", "weather")
            assert not list(problems(json.loads(arguments), TIGHT))
            assert bool(plain.reasoning) == thinking


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_comes_where_one_is_required(demo: httpx.Client, choice: Any) -> None:
    fields = {"tools": [FUNCTION, OTHER], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
    for seed in range(3):
        answer = ask(demo, "Hello!", seed=seed, temperature=1, **fields).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] in (None, "")
        ((name, arguments),) = called(answer)
        if name == "weather":
            assert not list(problems(arguments, TIGHT))
        else:
            assert (name, arguments) == ("stop_clock", {})
            assert choice == "required"


def test_a_stream_of_a_required_call_says_what_a_whole_answer_says(demo: httpx.Client) -> None:
    fields = {
        "tools": [FUNCTION],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 4,
        "max_tokens": 200,
    }
    ((name, arguments),) = called(ask(demo, **fields).json()["choices"][0])
    deltas = [frame["choices"][0]["delta"] for frame in frames(ask(demo, stream=True, **fields))[:-1]]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "".join(function.get("name") or "" for function in functions) == name == "weather"
    assert json.loads("".join(function.get("arguments") or "" for function in functions)) == arguments
    assert not any(delta.get("content") for delta in deltas)


def test_thinking_is_free_and_the_call_comes_behind_it(demo: httpx.Client) -> None:
    kwargs = {"enable_thinking": True}
    fields = {
        "tools": [FUNCTION],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 1,
        "max_tokens": 400,
    }
    answer = ask(demo, chat_template_kwargs=kwargs, **fields).json()["choices"][0]
    assert answer["message"]["reasoning_content"]
    ((name, arguments),) = called(answer)
    assert name == "weather"
    assert not list(problems(arguments, TIGHT))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": [FUNCTION], "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required", "tools": [FUNCTION], "min_tokens": 1}, "min_tokens"),
        (
            {
                "tools": [
                    OTHER,
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}},
                ]
            },
            "tools[1].function.parameters",
        ),
        (
            {
                "tools": [FUNCTION],
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
            },
            "response_format",
        ),
    ],
)
def test_what_can_not_be_held_to_is_a_400_at_once(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = ask(client, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
