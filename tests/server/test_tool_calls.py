"""Calls in both styles: what they come to, whole and letter by letter, and that nothing of an answer is lost."""

import json
import re
from functools import partial
from typing import Any
from unicodedata import normalize

import pytest
from call_scripts import CLOSE, OPEN, Script, read
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from engine.chat import ChatFormat
from engine.events import Span
from engine.text import TextStream
from server.tool_calls import CallReader
from server.tools import Tool

WRITE = Tool(
    "write",
    {},
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "line": {"type": "integer"},
            "marks": {"type": ["array", "null"]},
        },
    },
)
NOW = Tool("now", {})
TOOLS = (WRITE, NOW)


def xml(name: str, **values: str) -> str:
    """A call as the template writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"\n<function={name}>\n{parameters}</function>\n"


def one(arguments: object, name: str = "write") -> list[tuple[str, object]]:
    return [(name, arguments)]


# --- XML


def test_xml_call_is_typed_by_its_schema() -> None:
    got = read("xml", TOOLS, [OPEN, xml("write", path="a.py", line="3", marks="[1, 2]"), CLOSE])
    assert got.parts == [("write", '{"path":"a.py","line":3,"marks":[1, 2]}')]


@pytest.mark.parametrize(
    "call", ["<function=now></function>", "\n<function=now>\n</function>\n", " <function=now> \n\n</function>"]
)
def test_xml_call_without_parameters(call: str) -> None:
    assert read("xml", TOOLS, [OPEN, call, CLOSE]).parts == [("now", "{}")]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        "\n\n two \n\n",
        'quotes " and \\ and \t and \u2028 and \U0001f600',
        "a </parameter> b",
        "</parameter>",
        "</parameter>\n",
        "a </function> b",
        "a\n</parameter>\n</function>\nb",
        "</parameter>\n</function>",
        "</parameter></function></tool_call> in words of the text",
        "<parameter=path>\nx\n</parameter>",
        "</parameter>\n<parameter=path>\nb",
        "</parameter>\n<parameter=bad\nb",
        "</para",
        "<",
        "\n</parameter",
        "<tool_call>\n<function=now>\n</function>\n",
    ],
)
def test_xml_value_survives_with_whatever_tags_are_in_it(value: str) -> None:
    got = read("xml", TOOLS, [OPEN, xml("write", path="p", text=value), CLOSE])
    assert got.parts == [("write", json.dumps({"path": "p", "text": value}, ensure_ascii=False, separators=(",", ":")))]
    last = read("xml", TOOLS, [OPEN, xml("write", text=value, line="1"), CLOSE])
    if "<parameter=path>" not in value:
        assert last.calls == one({"text": value, "line": 1})


@pytest.mark.parametrize(
    ("between", "value"),
    [
        (["a", CLOSE, "b"], "a</tool_call>b"),
        (["a\n</parameter>\n", CLOSE, "b"], "a\n</parameter>\n</tool_call>b"),
        (["a", CLOSE, CLOSE, "\n</function>", CLOSE, "b"], "a</tool_call></tool_call>\n</function></tool_call>b"),
        (["a", CLOSE, "b </tool_ca"], "a</tool_call>b </tool_ca"),
        (["a", CLOSE, " b\n</parameter>\n</function> "], "a</tool_call> b\n</parameter>\n</function> "),
    ],
)
def test_close_token_inside_an_xml_value_is_part_of_it(between: Script, value: str) -> None:
    head, tail = "\n<function=write>\n<parameter=text>\n", "\n</parameter>\n</function>\n"
    got = read("xml", TOOLS, [OPEN, head, *between, tail, CLOSE, "\nDone."])
    assert (got.calls, got.text) == (one({"text": value}), "\nDone.")


def test_string_values_are_told_as_they_come_and_others_at_their_end() -> None:
    reader = CallReader("xml", {"write": WRITE})
    reader.open()
    said = [reader.feed(text) for text in ("<function=write>\n<parameter=text>\n", "one ", "two", "\n</parameter>\n")]
    assert [piece.text for part in said for piece in part if hasattr(piece, "text")] == ['{"text":"', "one ", "two"]
    said = [reader.feed(text) for text in ("<parameter=line>\n", "1", "2", "\n</parameter>\n<parameter=path>\n")]
    assert [piece.text for part in said for piece in part if hasattr(piece, "text")] == ['","line":', '12,"path":"']


# --- JSON


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ("{}", True),
        ('{ "path" :\n"a" }', True),
        ('{"a":[1,-2.5e+3,true,null,{"b":"\\u00e9\\n\\"}"}], "": {}}', True),
        ('{"a":"</tool_call> {[", "a":1}', True),
        ('{"a":01}', False),
        ('{"a":1,}', False),
        ('{"a":NaN}', False),
        ('{"a":"\n"}', False),
        ("{'a':1}", False),
        ('{"a" 1}', False),
        ('{"a":"\\x"}', False),
        ('{"a":[1}', False),
    ],
)
def test_json_arguments_are_the_models_own_bytes_or_closed_where_they_break(arguments: str, whole: bool) -> None:
    call = f'\n{{"name": "write", "arguments": {arguments}}}\n'
    got = read("json", TOOLS, [OPEN, call, CLOSE])
    ((name, said), *rest) = got.parts
    assert name == "write"
    if whole:
        assert (said, rest) == (arguments, [])
        return
    assert isinstance(json.loads(said), dict)
    assert "".join(map(str, rest)).strip(), "what did not fit is text"
    assert "tool_call" not in got.text


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "write", "arguments": {"path": "a"}}',
        '{"arguments": {"path": "a"}, "name": "write"}',
        '{"id": [1, {"x": "}"}], "name": "write", "type": null, "arguments": {"path": "a"}, "n": 5}',
        '{ "n\\u0061me" : "wri\\u0074e" ,\n"arguments":{"path": "a"}\n}\n',
    ],
)
def test_json_keys_may_come_in_any_order(call: str) -> None:
    assert read("json", TOOLS, [OPEN, call, CLOSE]).parts == [("write", '{"path": "a"}')]


def test_json_call_without_arguments_has_empty_ones() -> None:
    assert read("json", TOOLS, [OPEN, '{"name": "now"}', CLOSE]).parts == [("now", "{}")]


@pytest.mark.parametrize(
    "parts",
    [
        ['{"name": "write", "arguments": {"text": "a', CLOSE, ' b"}}', CLOSE],
        ['{"arguments": {"text": "a', CLOSE, ' b"}, "name": "write"}\n', CLOSE],
    ],
)
def test_close_token_inside_a_json_string_is_part_of_it(parts: list[object]) -> None:
    got = read("json", TOOLS, [OPEN, *parts, " Done."])
    assert (got.calls, got.text) == (one({"text": "a</tool_call> b"}), " Done.")


def test_json_arguments_stream_where_the_name_came_first() -> None:
    reader = CallReader("json", {"write": WRITE})
    reader.open()
    texts = ['{"name": "write", "arguments": ', '{"te', 'xt": "on', "e\\", 'n two", "line": 1', "2}", "}"]
    said = [[piece.text for piece in reader.feed(text) if hasattr(piece, "text")] for text in texts]
    assert said == [[], ["{"], ['"text": "on'], ["e"], ['\\n two"'], [', "line": 12}'], []]


# --- both


@pytest.mark.parametrize(
    "call",
    [
        "",
        "\n",
        "so it goes",
        "\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n",
        "\n<function=write\n>",
        "<function=write><function=now>",
        "<function=now></function> more",
        "<function=write>words",
        "<func",
    ],
)
def test_what_is_no_xml_call_is_text_with_its_tags(call: str) -> None:
    said = ["I look.\n", OPEN, call, CLOSE, "\nSo."]
    expected = f"I look.\n<tool_call>{call}</tool_call>\nSo."
    assert read("xml", TOOLS, said).parts == [expected]
    assert read("xml", TOOLS, said[:-2]).parts == [expected.removesuffix("</tool_call>\nSo.")], "no tag is made up"


@pytest.mark.parametrize(
    "call",
    [
        "",
        "[]",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "write"',
        '{"name": "write", "arguments": []}',
        '{"name": "write", "arguments": "{}"}',
        '{"name": 5, "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"arguments": {"a": 1}, "name": "unknown"}',
        '{"name": "write", "name": "now"}',
        '{"arguments": {}, "arguments": {}, "name": "write"}',
        '{"name": "now"} more',
        '{"name": "no',
    ],
)
def test_what_is_no_json_call_is_text_with_its_tags(call: str) -> None:
    got = read("json", TOOLS, ["I look.\n", OPEN, call, CLOSE, "\nSo."])
    assert got.parts == [f"I look.\n<tool_call>{call}</tool_call>\nSo."]


@pytest.mark.parametrize(
    ("script", "arguments", "rest"),
    [
        (["<function=write>\n<parameter=text>\nhalf"], {"text": "half"}, ""),
        (["<function=write>\n<parameter=text>\nhalf\n</parameter>\n"], {"text": "half"}, ""),
        (["<function=write>\n<parameter=text>\nhalf\n</parameter>\n</function>\n"], {"text": "half"}, ""),
        (["<function=write>\n<parameter=text>\nhalf\n</function>\n", CLOSE, "\n"], {"text": "half"}, ""),
        (["<function=write>\n<parameter=text>\nhalf", CLOSE], {"text": "half"}, ""),
        (["<function=write>\n<parameter=line>\n5\n</parameter>\n", CLOSE], {"line": 5}, ""),
        (["<function=write>\n<parameter=text>\nhalf\n</param"], {"text": "half\n</param"}, ""),
        (["<function=write>\n<parameter=text>\nhalf", CLOSE, " so"], {"text": "half</tool_call> so"}, ""),
    ],
)
def test_xml_call_that_the_answer_ends_in_is_closed(script: Script, arguments: object, rest: str) -> None:
    got = read("xml", TOOLS, [OPEN, *script])
    assert (got.calls, got.text) == (one(arguments), rest)
    again = read("xml", TOOLS, [OPEN, *script, OPEN, xml("now"), CLOSE])
    if script[-1] is CLOSE or script[-1] == "\n":
        assert again.calls == [*one(arguments), ("now", {})]


@pytest.mark.parametrize(
    ("script", "arguments", "rest"),
    [
        (['{"name": "write", "arguments": {"text": "half'], {"text": "half"}, ""),
        (['{"name": "write", "arguments": {"line": 5'], {"line": 5}, ""),
        (['{"name": "write", "arguments": {"line": 5', CLOSE], {"line": 5}, ""),
        (['{"name": "write", "arguments": {"line": 5}', CLOSE, "\n"], {"line": 5}, ""),
        (['{"name": "write", "arguments": {"line": 5}}}', CLOSE, "\nSo."], {"line": 5}, "}\nSo."),
        (['{"name": "write", "arguments": {"marks": [tru', CLOSE], {"marks": []}, "tru"),
        (['{"name": "write", "arguments": {"line": 5, oh no', CLOSE, " So."], {"line": 5}, ", oh no So."),
        (['{"name": "write", "arguments": {"text": "half', CLOSE, " so"], {"text": "half</tool_call> so"}, ""),
    ],
)
def test_json_call_that_breaks_is_closed_and_the_rest_is_text(script: Script, arguments: object, rest: str) -> None:
    got = read("json", TOOLS, [OPEN, *script])
    assert (got.calls, got.text) == (one(arguments), rest)


@pytest.mark.parametrize(
    ("style", "begin", "begun"),
    [
        ("xml", "\n<function=write>\n", False),
        ("xml", "\n<function=now>\n</function>\n", False),
        ("xml", "\n<function=write>\n<parameter=text>\nha", True),
        ("xml", "\n<function=write>\n<parameter=text>\nha\n</parameter>\n</function>\n", True),
        ("json", '\n{"name": "write", "arguments"', False),
        ("json", '\n{"name": "write", "arguments": {"text": "ha', True),
        ("json", '\n{"name": "write", "arguments": {"text": "ha"}}\n', True),
    ],
)
def test_call_that_max_tokens_cuts_is_never_whole(style: Any, begin: str, begun: bool) -> None:
    now = xml("now") if style == "xml" else '{"name": "now"}'
    got = read(style, TOOLS, [OPEN, now, CLOSE, "\n", OPEN, begin], cut=True)
    assert got.calls == [("now", {})]
    raw = "\n<tool_call>" + begin
    assert (got.text, got.cut) == (("", raw) if begun else (raw, ""))
    assert len(got.unfinished) == begun


def test_cut_behind_a_close_token_inside_a_value_keeps_all_of_the_text() -> None:
    begin = "<function=write><parameter=text>ha"
    got = read("xml", TOOLS, [OPEN, begin, CLOSE, " so </tool"], cut=True)
    assert got.cut == f"<tool_call>{begin}</tool_call> so </tool"


@pytest.mark.parametrize("between", ["", "\n", " \n\n\t"])
def test_whitespace_between_and_behind_calls_is_the_templates(between: str) -> None:
    call = [OPEN, xml("now"), CLOSE, between]
    assert read("xml", TOOLS, call * 3).parts == [("now", "{}")] * 3


def test_text_around_calls_is_kept_to_the_letter() -> None:
    call = [OPEN, xml("now"), CLOSE]
    got = read("xml", TOOLS, [" \n", *call, "\n\nand ", *call, "\n", OPEN, "no call", CLOSE, "\n"])
    assert got.parts == [" \n", ("now", "{}"), "\n\nand ", ("now", "{}"), "\n<tool_call>no call</tool_call>\n"]


@pytest.mark.parametrize("style", ["xml", "json", None])
def test_without_tools_or_a_style_all_is_text(style: Any) -> None:
    script = ["a", OPEN, xml("now"), CLOSE, OPEN, CLOSE, "b"]
    expected = f"a<tool_call>{xml('now')}</tool_call><tool_call></tool_call>b"
    assert read(style, (), script).parts == [expected]
    assert read(None, TOOLS, script).parts == [expected]


# --- properties

XML_PARTS = [
    *("<function=write>", "<function=now>", "<function=other>", "<parameter=path>", "<parameter=line>"),
    *("<parameter=marks>", "</parameter>", "</function>", "</tool_call>", "<tool_call>"),
    *("\n", " ", "<", "</", "text", "5", '"', "null"),
]
JSON_PARTS = [
    *(
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        '"',
        "\\",
        "\\u00",
        "41",
        " ",
        "\n",
        "</tool_call>",
        "1",
        "-",
        "2.",
        "e",
        "true",
        "tru",
    ),
    *('"name"', '"arguments"', '"write"', '"other"', '"k": ', '"v"'),
    *('{"name": "write", "arguments": {', '{"arguments": {'),
]
XML_HEAD, JSON_HEAD = "\n<function=write>\n<parameter=path>\n", '{"name": "write", "arguments": {"path": "'


def scripts(parts: list[str], head: str) -> st.SearchStrategy[list[object]]:
    text = st.lists(st.sampled_from(parts), max_size=6).map("".join)
    part = st.one_of(text, st.sampled_from([OPEN, CLOSE]))
    return st.builds(lambda begin, rest: [*begin, *rest], st.sampled_from([[], [OPEN], [OPEN, head]]), st.lists(part))


@settings(deadline=None)
@given(scripts(XML_PARTS, XML_HEAD), st.booleans())
@example([OPEN, XML_HEAD, "</parameter>", CLOSE, OPEN, CLOSE], False)
def test_any_xml_answer_is_the_same_letter_by_letter_with_valid_arguments(script: list[object], cut: bool) -> None:
    check(read("xml", TOOLS, script, cut), script, cut)


@settings(deadline=None)
@given(scripts(JSON_PARTS, JSON_HEAD), st.booleans())
def test_any_json_answer_is_the_same_letter_by_letter_with_valid_arguments(script: list[object], cut: bool) -> None:
    check(read("json", TOOLS, script, cut), script, cut)


def check(got: Any, script: list[object], cut: bool) -> None:
    assert all(isinstance(arguments, dict) for _, arguments in got.calls)
    assert len(got.unfinished) == (1 if got.cut else 0)
    assert cut or not got.cut
    if not got.calls and not got.cut and script.count(OPEN) <= 1:
        tags = {OPEN: "<tool_call>", CLOSE: "</tool_call>"}
        assert got.text == "".join(tags.get(part, part) for part in script)  # type: ignore[call-overload,misc]


# The demo's tokenizer, as Qwen's, composes characters (NFC) before the model sees them.
LETTERS = st.characters(exclude_categories=["Cs", "M"])
TEXTS = st.text(LETTERS).map(partial(normalize, "NFC"))
KEYS = TEXTS.filter(lambda text: text and not set(text) & set("<>\n"))
TAGS = ["</parameter>", "</function>", "</tool_call>", "<tool_call>", "<parameter=", "<function=", "\n", "a", '"', ">"]
STRINGS = st.one_of(TEXTS, st.lists(st.sampled_from(TAGS)).map("".join))
FLAT = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), STRINGS)
DEEP = st.recursive(FLAT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": STRINGS,
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(DEEP, max_size=3),
    "object": st.dictionaries(STRINGS, DEEP, max_size=3),
}
TYPED = st.sampled_from(sorted(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))


@settings(deadline=None)
@given(st.dictionaries(KEYS, TYPED, max_size=4))
def test_what_the_template_writes_is_read_back_the_same(
    chat_format: ChatFormat, given_: dict[str, tuple[str, Any]]
) -> None:
    arguments = {key: value for key, (_, value) in given_.items()}
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in arguments.values()]
    # the one thing that can stand in a value and means something else there: the border to another parameter
    assume(not any(re.search(r"</parameter>\s*<parameter=[^<>\n]+>", text) for text in texts))
    properties = {key: {"type": kind} for key, (kind, _) in given_.items()}
    tool = Tool("tool", {}, {"type": "object", "properties": properties})
    call = {"type": "function", "function": {"name": "tool", "arguments": arguments}}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    rendered = chat_format.render(turns)
    assert chat_format.tool_ids is not None
    stream = TextStream(chat_format)
    reader = CallReader("xml", {"tool": tool})
    pieces = []
    for token in rendered[rendered.index(chat_format.tool_ids[0]) :]:
        if token in chat_format.eos_ids:
            break
        for span in stream.push(token):
            pieces += span_pieces(reader, span)
    pieces += reader.stop()
    assert [type(piece).__name__ for piece in (pieces[0], pieces[-1])] == ["CallBegin", "CallEnd"]
    said = "".join(piece.text for piece in pieces if hasattr(piece, "text"))
    assert json.loads(said) == arguments
    assert list(json.loads(said)) == list(arguments)


def span_pieces(reader: CallReader, span: Span) -> list[Any]:
    if span.opens:
        return reader.open() if span.kind == "tool" else reader.close()
    return reader.feed(span.text)


@settings(deadline=None)
@given(st.dictionaries(STRINGS, DEEP, max_size=4), st.sampled_from([None, 0, 2]), st.booleans(), st.booleans())
def test_any_json_arguments_come_out_byte_for_byte(
    arguments: dict[str, Any], indent: int | None, ascii_only: bool, name_first: bool
) -> None:
    text = json.dumps(arguments, indent=indent, ensure_ascii=ascii_only)
    parts = ['"name": "write"', f'"arguments": {text}']
    call = "{" + ", ".join(parts if name_first else parts[::-1]) + "}"
    assert read("json", TOOLS, [OPEN, call, CLOSE]).parts == [("write", text)]
