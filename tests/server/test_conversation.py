"""Messages to turns: what is kept, what is joined, what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from server.conversation import from_chat
from server.errors import ApiError


def test_opening_system_turns_are_joined_and_later_ones_stay() -> None:
    turns = from_chat(
        [
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "e"},
        ]
    )
    assert [(turn["role"], turn["content"]) for turn in turns] == [
        ("system", "a\n\nb"), ("user", "c"), ("system", "d"), ("user", "e"),
    ]  # fmt: skip


@given(st.lists(st.text(), min_size=1))
def test_parts_are_joined_with_nothing_between(texts: list[str]) -> None:
    parts = [{"type": "text", "text": text, "cache_control": {}} for text in texts]
    assert from_chat([{"role": "user", "content": parts}]) == [{"role": "user", "content": "".join(texts)}]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.text()), min_size=1))
def test_text_and_order_are_never_changed(said: list[tuple[str, str]]) -> None:
    said = [("user", "first"), *said]
    turns = from_chat([{"role": role, "content": text} for role, text in said])
    assert [(turn["role"], turn["content"]) for turn in turns] == said


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ('{"b": 1, "a": [2]}', {"b": 1, "a": [2]}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("{bad", {"arguments": "{bad"}),
        ("[1]", {"arguments": "[1]"}),
        ("5", {"arguments": "5"}),
        ('{"a":"\\ud800"}', {"arguments": '{"a":"\\ud800"}'}),
    ],
)
def test_arguments_of_past_calls_are_kept_whatever_they_are(
    scripted: ScriptedEngine, arguments: Any, taken: dict[str, Any]
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = from_chat(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ]
    )
    assert turns[1]["tool_calls"][0]["function"]["arguments"] == taken
    assert list(turns[1]["tool_calls"][0]["function"]["arguments"]) == list(taken)
    assert "<function=f>" in scripted.chat.decode(scripted.chat.render(turns))


def test_reasoning_is_taken_under_each_of_its_names() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        (turn,) = from_chat([{"role": "assistant", "content": "", name: "hm"}])
        assert turn == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_legacy_function_messages_become_tool_turns() -> None:
    turns = from_chat(
        [
            {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":1}'}},
            {"role": "function", "name": "f", "content": None},
        ]
    )
    assert turns[0]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert turns[1] == {"role": "tool", "content": "", "name": "f"}


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("hi", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "refusal": 5}, "messages[0].refusal"),
    ],
)
def test_refusal_names_the_place(message: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        from_chat([message])
    assert (caught.value.status, caught.value.param) == (400, path)
