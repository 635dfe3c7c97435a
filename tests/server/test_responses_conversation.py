"""Items of a response to turns: one turn of the model again, what is kept, what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ApiError
from server.responses_conversation import Input
from server.responses_tools import ToolList

USER = {"role": "user", "content": "hi"}


def turns(given: object, instructions: str | None = None) -> list[dict[str, Any]]:
    return Input(ToolList()).turns(given, instructions)


def said(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], **fields}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}], **fields}


def called(call_id: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": "f", "call_id": call_id, "arguments": arguments, **fields}


def returned(call_id: str, output: object) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def test_a_string_is_the_users_turn() -> None:
    assert turns("hi") == [{"role": "user", "content": "hi"}]


def test_instructions_lead_and_later_developer_messages_stay_in_place() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "system", "content": "c"},
        USER,
        {"role": "developer", "content": "d"},
        USER,
    ]
    assert [(turn["role"], turn["content"]) for turn in turns(items, "a")] == [
        ("system", "a\n\nb\n\nc"), ("user", "hi"), ("system", "d"), ("user", "hi"),
    ]  # fmt: skip
    assert turns([USER], "") == [USER], "empty instructions say nothing"


def test_items_of_one_answer_are_one_turn() -> None:
    got = turns(
        [
            USER,
            thought("hm", content=None, encrypted_content=None, status="completed"),
            said("Let me see. ", id="msg_1", status="completed", phase="commentary"),
            called("c1", '{"a": 1}', id="fc_1", status="completed"),
            {"type": "custom_tool_call", "id": "ctc_1", "name": "g", "call_id": "c2", "input": "free\ntext"},
            returned("c1", "one"),
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "two"},
            thought("so"),
            said("Done."),
        ]
    )
    assert got[1:] == [
        {
            "role": "assistant",
            "content": "Let me see. ",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "id": "c1"},
                {"type": "function", "function": {"name": "g", "arguments": {"input": "free\ntext"}}, "id": "c2"},
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Done.", "reasoning_content": "so"},
    ]


def test_two_messages_or_reasonings_in_a_row_are_two_turns() -> None:
    assert [turn["content"] for turn in turns([USER, said("a"), said("b")])] == ["hi", "a", "b"]
    assert [turn.get("reasoning_content") for turn in turns([USER, thought("a"), thought("b"), called("1")])] == [
        None, "a", "b",
    ]  # fmt: skip


def test_text_around_a_call_stays_in_one_turn_in_order() -> None:
    got = turns([USER, said("before"), called("1"), called("2"), said("after")])
    assert len(got) == 2
    assert (got[1]["content"], [call["id"] for call in got[1]["tool_calls"]]) == ("beforeafter", ["1", "2"])


def test_reasoning_text_outranks_its_summary() -> None:
    whole = thought(
        "short", content=[{"type": "reasoning_text", "text": "all"}, {"type": "reasoning_text", "text": "!"}]
    )
    assert turns([whole])[0]["reasoning_content"] == "all!"
    assert turns([{"type": "reasoning", "summary": []}])[0]["reasoning_content"] == ""


def test_encrypted_reasoning_can_not_be_read_and_is_told() -> None:
    reader = Input(ToolList())
    assert reader.turns([USER, thought("", encrypted_content="gAAA"), said("x")], None)[1]["content"] == "x"
    assert reader.ignored == ["input.reasoning.encrypted_content"]


def test_a_namespaces_call_has_the_name_that_the_model_used() -> None:
    (turn,) = turns([called("1", namespace="mcp__box", id="fc_1")])
    assert turn["tool_calls"][0]["function"]["name"] == "mcp__box__f"


@pytest.mark.parametrize(
    "output", ["a\nb", [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "\nb"}]]
)
def test_outputs_are_text_or_parts(output: object) -> None:
    assert turns([called("1"), returned("1", output)])[1] == {"role": "tool", "tool_call_id": "1", "content": "a\nb"}


@pytest.mark.parametrize("output", [None, "", []])
def test_an_output_may_be_empty(output: object) -> None:
    assert turns([called("1"), returned("1", output)])[1]["content"] == ""


@pytest.mark.parametrize("arguments", ["{bad", "[1]", "", None])
def test_arguments_that_a_model_got_wrong_do_not_end_the_session(arguments: Any) -> None:
    taken = turns([USER, called("1", arguments)])[1]["tool_calls"][0]["function"]["arguments"]
    assert taken == ({"arguments": arguments} if arguments else {})


def test_tools_may_come_as_an_item_and_leave_no_text() -> None:
    tools = ToolList()
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    got = Input(tools).turns([USER, said("a"), item, USER], None)
    assert [turn["role"] for turn in got] == ["user", "assistant", "user"]
    assert [tool.name for tool in tools.chosen(None, True).offered] == ["late"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "developer", "reasoning", "message", "call", "output"]), st.text(min_size=1))
    )
)
def test_every_text_stays_in_order_whatever_the_items(told: list[tuple[str, str]]) -> None:
    """Within a turn the template puts reasoning before text and text before calls; turns keep their order."""
    make = {
        "user": lambda text: {"role": "user", "content": text},
        "developer": lambda text: {"role": "developer", "content": text},
        "reasoning": thought,
        "message": said,
        "call": lambda text: {"type": "custom_tool_call", "name": "f", "call_id": "1", "input": text},
        "output": lambda text: returned("1", text),
    }
    got = turns([USER, *(make[kind](text) for kind, text in told)])
    by_kind: dict[str, str] = dict.fromkeys(make, "")
    for turn in got[1:]:
        role = {"system": "developer", "assistant": "message", "tool": "output"}.get(turn["role"], "user")
        by_kind[role] += turn["content"]
        by_kind["reasoning"] += turn.get("reasoning_content", "")
        by_kind["call"] += "".join(call["function"]["arguments"]["input"] for call in turn.get("tool_calls", ()))
    assert by_kind == {kind: "".join(text for other, text in told if other == kind) for kind in make}
    outside = [kind for kind, _ in told if kind in ("user", "developer", "output")]
    roles = {"system": "developer", "tool": "output", "user": "user"}
    assert [roles[turn["role"]] for turn in got[1:] if turn["role"] != "assistant"] == outside


@pytest.mark.parametrize(
    ("items", "path"),
    [
        (5, "input"),
        (None, "input"),
        ([], "input"),
        (["x"], "input[0]"),
        ([{}], "input[0]"),
        ([{"id": "msg_1"}], "input[0]"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0]"),
        ([USER, {"type": "web_search_call", "id": "ws_1"}], "input[1].type"),
        ([{"type": ["message"]}], "input[0].type"),
        ([{"type": "message", "content": "x"}], "input[0].role"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": []}], "input[0].content"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]}],
         "input[0].content[1].type"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "input[0].content[0].type"),
        ([called("1"), returned("1", [{"type": "input_image", "image_url": "data:"}])], "input[1].output[0].type"),
        ([returned("1", {"a": 1})], "input[0].output"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
        ([called("")], "input[0].call_id"),
        ([{**called("1"), "name": None}], "input[0].name"),
        ([{**called("1"), "namespace": 5}], "input[0].namespace"),
        ([{**called("1"), "arguments": {"a": 1}}], "input[0].arguments"),
        ([{"type": "custom_tool_call", "name": "f", "call_id": "1"}], "input[0].input"),
        ([{"type": "reasoning", "summary": "x"}], "input[0].summary"),
        ([{"type": "reasoning", "summary": [{"type": "text", "text": "x"}]}], "input[0].summary[0]"),
        ([{"type": "reasoning", "content": [{"type": "reasoning_text"}]}], "input[0].content[0].text"),
        ([{"type": "additional_tools", "tools": {}}], "input[0].tools"),
        ([{"type": "additional_tools", "tools": [{"type": "function"}]}], "input[0].tools[0].name"),
    ],
)  # fmt: skip
def test_refusal_names_the_place(items: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        turns(items)
    assert (caught.value.status, caught.value.param) == (400, path)


def test_instructions_alone_are_no_conversation() -> None:
    with pytest.raises(ApiError, match="holds no message"):
        turns([], "be brief")
