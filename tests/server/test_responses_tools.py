"""A Responses request's tools: flattened, restored, dropped, chosen; and the text in a custom tool's call."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Grammar
from server.errors import ApiError
from server.responses_custom import CustomInput
from server.responses_tools import ClientName, ToolList
from server.tools import Tools

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}, "required": ["z"]}
READ = {"type": "function", "name": "read", "description": "Reads.", "strict": True, "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "All about agents.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Spawns.", "parameters": SCHEMA},
        {"type": "custom", "name": "tell"},
    ],
}


def listed(*tools: object) -> ToolList:
    box = ToolList()
    box.add(tools, "tools")
    return box


def offered(box: ToolList) -> dict[str, Any]:
    return {tool.name: tool for tool in box.chosen(None, True).offered}


def test_a_function_is_shown_as_the_template_knows_it() -> None:
    tool = offered(listed(READ))["read"]
    assert tool.shown == {
        "type": "function",
        "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA},
    }
    assert list(tool.shown["function"]["parameters"]["properties"]) == ["z", "a"]
    assert (tool.parameters, tool.strict, tool.grammar) == (SCHEMA, True, None)
    assert offered(listed({"type": "function", "name": "f", "parameters": None, "description": None}))["f"].shown == {
        "type": "function",
        "function": {"name": "f"},
    }


def test_a_namespace_is_flattened_and_restored() -> None:
    box = listed(READ, AGENTS)
    tools = offered(box)
    assert list(tools) == ["read", "agents__spawn", "agents__tell"]
    assert tools["agents__spawn"].shown["function"]["name"] == "agents__spawn"
    assert tools["agents__spawn"].shown["function"]["description"] == "All about agents.\n\nSpawns."
    assert box.client_name("agents__spawn") == ClientName("spawn", "agents")
    assert box.client_name("agents__tell") == ClientName("tell", "agents", custom=True)
    assert box.client_name("read") == ClientName("read")
    assert box.client_name("other__x") == ClientName("other__x")


def test_a_custom_tool_takes_one_text() -> None:
    box = listed(PATCH, {"type": "custom", "name": "free", "format": {"type": "text"}})
    tools = offered(box)
    assert tools["patch"].parameters["properties"] == {"input": {"type": "string"}}
    assert tools["patch"].grammar == Grammar("lark", 'start: "x"')
    assert tools["free"].grammar is None
    assert box.client_name("patch").custom


def test_what_a_provider_would_run_is_dropped_and_told() -> None:
    kinds = [
        "web_search", "web_search_preview_2025_03_11", "file_search", "image_generation", "mcp", "code_interpreter",
        "local_shell", "tool_search", "computer_use_preview", "apply_patch", "of_next_year",
    ]  # fmt: skip
    box = listed(READ, *({"type": kind} for kind in kinds), {**READ, "name": "late", "defer_loading": True, "x": None})
    assert list(offered(box)) == ["read", "late"]
    assert [tool["name"] for tool in box.as_sent] == ["read", "late"]
    assert box.ignored == {f"tools.{kind}" for kind in kinds} | {"tools.defer_loading"}


def test_the_same_tool_may_come_twice_and_another_of_its_name_may_not() -> None:
    box = listed(READ, AGENTS, PATCH)
    box.add([READ, AGENTS, PATCH], "input[3].tools")
    assert len(offered(box)) == 4
    assert len(box.as_sent) == 3
    for other in (
        {**READ, "description": "x"},
        {**PATCH, "name": "read"},
        {"type": "function", "name": "agents__spawn"},
    ):
        with pytest.raises(ApiError) as caught:
            listed(READ, AGENTS).add([other], "input[3].tools")
        assert caught.value.param == "input[3].tools[0].name"


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ("x", "tools[1]"),
        ({"name": "f"}, "tools[1]"),
        ({"type": 5}, "tools[1]"),
        ({"type": "function"}, "tools[1].name"),
        ({"type": "function", "name": ""}, "tools[1].name"),
        ({"type": "function", "name": "f>\n<parameter=x"}, "tools[1].name"),
        ({"type": "function", "name": "f\n"}, "tools[1].name"),
        ({"type": "function", "name": "f", "description": 5}, "tools[1].description"),
        ({"type": "function", "name": "f", "parameters": []}, "tools[1].parameters"),
        ({"type": "function", "name": "f", "strict": "yes"}, "tools[1].strict"),
        ({"type": "custom", "name": "f", "format": "lark"}, "tools[1].format"),
        ({"type": "custom", "name": "f", "format": {"type": "json"}}, "tools[1].format"),
        ({"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}},
         "tools[1].format.syntax"),
        ({"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": ""}},
         "tools[1].format.definition"),
        ({"type": "namespace", "name": "n"}, "tools[1].tools"),
        ({"type": "namespace", "tools": []}, "tools[1].name"),
        ({"type": "namespace", "name": "n", "tools": [READ, {"type": "function"}]}, "tools[1].tools[1].name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}, "tools[1].tools[0]"),
    ],
)  # fmt: skip
def test_refusal_names_the_tool(tool: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        listed(READ, tool)
    assert (caught.value.status, caught.value.param) == (400, path)


@pytest.mark.parametrize(
    ("choice", "expected", "only"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "read"}, "required", {"read"}),
        ({"type": "custom", "name": "patch"}, "required", {"patch"}),
        ({"type": "function", "name": "agents__spawn"}, "required", {"agents__spawn"}),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "required", {"agents__spawn"}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read"},
                                                             {"type": "custom", "name": "patch"}]},
         "auto", {"read", "patch"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]},
         "required", {"read"}),
    ],
)  # fmt: skip
def test_choices(choice: object, expected: str, only: set[str] | None) -> None:
    tools = listed(READ, PATCH, AGENTS).chosen(choice, parallel=False)
    assert (tools.choice, tools.only, tools.parallel) == (expected, only, False)
    assert len(tools.offered) == 4


@pytest.mark.parametrize(
    ("choice", "path"),
    [
        ("always", "tool_choice"),
        (5, "tool_choice"),
        ({}, "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "write"}, "tool_choice.name"),
        ({"type": "custom", "name": "read"}, "tool_choice.name"),
        ({"type": "function", "name": "patch"}, "tool_choice.name"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "x"}, "tool_choice.type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "any", "tools": [{"type": "function", "name": "read"}]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["read"]}, "tool_choice.tools[0]"),
    ],
)  # fmt: skip
def test_a_choice_that_can_not_be_kept_is_refused(choice: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        listed(READ, PATCH, {"type": "web_search"}).chosen(choice, True)
    assert (caught.value.status, caught.value.param) == (400, path)


def test_a_call_can_not_be_required_without_tools() -> None:
    assert ToolList().chosen("auto", True) == Tools()
    with pytest.raises(ApiError) as caught:
        listed({"type": "web_search"}).chosen("required", True)
    assert caught.value.param == "tool_choice"


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(place, len(text)) for place in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def read(chunks: list[str]) -> str:
    custom = CustomInput()
    return "".join([*map(custom.feed, chunks), custom.end()])


CUTS = st.lists(st.integers(0, 300), max_size=30)


@given(st.text(), st.booleans(), st.sampled_from(["", " ", "\n"]), CUTS)
def test_the_input_is_the_text_in_the_json_however_it_is_cut(
    text: str, ascii: bool, blank: str, cuts: list[int]
) -> None:
    written = f'{blank}{{{blank}"input"{blank}:{blank}{json.dumps(text, ensure_ascii=ascii)}{blank}}}{blank}'
    assert read(cut(written, cuts)) == text
    assert read(list(written)) == text


@given(st.text(), st.integers(0, 300))
def test_the_input_comes_as_it_is_written(text: str, upto: int) -> None:
    """What has come is all but half a character at most: what stands before it can be closed there."""
    written = '{"input":' + json.dumps(text)
    custom = CustomInput()
    got = custom.feed(written[:upto])
    assert text.startswith(got)
    whole = [n for n in range(len(text) + 1) if len('{"input":' + json.dumps(text[:n])) - 1 <= upto]
    assert len(got) >= (whole[-1] if whole else 0)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'{"input": "a\ud83d\ude00b"}', "a\U0001f600b"),
        (r'{"input": "\ud83d"}', "\ufffd"),
        (r'{"input": "\ud83dx\ude00"}', "\ufffdx\ufffd"),
        (r'{"input": "\\ud83d"}', r"\ud83d"),
        (r'{"input": "\ud83d\n"}', "\ufffd\n"),
        ('{"input": ""}', ""),
        ('{"command": "ls"}', '{"command": "ls"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("{}", "{}"),
        ("", ""),
    ],
)
def test_odd_arguments_are_not_lost(written: str, text: str) -> None:
    assert read([written]) == text
    assert read(list(written)) == text
