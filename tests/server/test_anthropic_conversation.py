"""Anthropic's messages to turns: what is kept, where it stands, what is left out, what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from engine.chat import ChatFormat, load_chat_format
from engine.models.locate import ASSETS
from server.anthropic_conversation import from_messages, seal
from server.errors import ApiError

BILLING = "x-anthropic-billing-header: cc_version=2.1.197.d49; cc_entrypoint=cli;"
DEMO = ASSETS / "demo-13m"


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def use(number: int, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": arguments}


def result(number: int, content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def call(number: int, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": f"toolu_{number}"}


@given(st.lists(st.text(), min_size=1), st.sampled_from(["user", "assistant", "system"]))
def test_text_blocks_are_joined_with_nothing_between(texts: list[str], role: str) -> None:
    blocks = [text(each, cache_control={"type": "ephemeral"}, citations=None) for each in texts]
    assert from_messages([{"role": role, "content": blocks}]) == [{"role": role, "content": "".join(texts)}]
    assert from_messages([{"role": role, "content": "".join(texts)}]) == [{"role": role, "content": "".join(texts)}]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text()), min_size=1))
def test_order_and_roles_are_never_changed(said: list[tuple[str, str]]) -> None:
    said = [("user", "first"), *said]
    turns = from_messages([{"role": role, "content": words} for role, words in said])
    assert [(turn["role"], turn["content"]) for turn in turns] == said


@pytest.mark.parametrize("system", [None, "", [], [text("")], BILLING, [text(BILLING)]])
def test_no_system_prompt_is_no_turn(system: Any) -> None:
    assert from_messages([{"role": "user", "content": "hi"}], system) == [{"role": "user", "content": "hi"}]


def test_billing_line_is_left_out_of_the_top_level_system_alone() -> None:
    quoted = f"What does {BILLING} mean?"
    said = [
        {"role": "user", "content": [text(BILLING), text(quoted)]},
        {"role": "system", "content": BILLING},
        {"role": "user", "content": [result(1, BILLING)]},
    ]
    expected = [BILLING + quoted, BILLING, BILLING]
    for system in ([text(BILLING), text(f"You help. {BILLING}")], f"{BILLING}\nYou help. {BILLING}"):
        turns = from_messages(said, system)
        assert [turn["content"] for turn in turns] == [f"You help. {BILLING}", *expected]


def test_system_turns_that_open_a_conversation_are_one() -> None:
    turns = from_messages([{"role": "system", "content": "b"}, {"role": "user", "content": "c"}], [text("a")])
    assert [(turn["role"], turn["content"]) for turn in turns] == [("system", "a\n\nb"), ("user", "c")]


def test_tool_results_and_text_become_turns_in_the_order_given() -> None:
    content = [result(1), result(2, [text("a"), text("b")], is_error=True), text("go"), text(" on"), result(3, None)]
    assert from_messages([{"role": "user", "content": content}]) == [
        {"role": "tool", "content": "done", "tool_call_id": "toolu_1"},
        {"role": "tool", "content": "ab", "tool_call_id": "toolu_2"},
        {"role": "user", "content": "go on"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_3"},
    ]


def test_an_assistants_blocks_are_one_turn_as_long_as_none_has_to_move() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "someone else's"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    blocks = [redacted, thinking, text("a"), text("b"), use(1, z=1, a={"y": [2], "b": None}), use(2)]
    (turn,) = from_messages([{"role": "assistant", "content": blocks}])
    assert turn == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "hm",
        "tool_calls": [call(1, z=1, a={"y": [2], "b": None}), call(2)],
    }
    assert list(turn["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]


def test_a_block_that_would_have_to_move_begins_another_turn() -> None:
    thinking = {"type": "thinking", "thinking": "hm"}
    turns = from_messages([{"role": "assistant", "content": [text("a"), use(1), text("b"), thinking, use(2)]}])
    assert turns == [
        {"role": "assistant", "content": "a", "tool_calls": [call(1)]},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call(2)]},
    ]


@pytest.mark.parametrize("blocks", [[], None, [{"type": "redacted_thinking", "data": "x"}]])
def test_an_answer_that_was_cut_before_it_began_is_an_empty_turn(blocks: Any) -> None:
    assert from_messages([{"role": "assistant", "content": blocks}]) == [{"role": "assistant", "content": ""}]


@given(st.text())
def test_hidden_thinking_comes_back_in_its_signature(thought: str) -> None:
    block = {"type": "thinking", "thinking": "", "signature": seal(thought)}
    (turn,) = from_messages([{"role": "assistant", "content": [block, text("a")]}])
    assert turn["reasoning_content"] == thought


@pytest.mark.parametrize("signature", [None, 5, "", "c2lnbmF0dXJl", "mtplx-tui.%%%", "mtplx-tui.//8=", seal("")])
def test_thinking_of_other_servers_is_what_its_block_shows(signature: Any) -> None:
    for shown in ("", "hm", None):
        block = {"type": "thinking", "thinking": shown, "signature": signature}
        (turn,) = from_messages([{"role": "assistant", "content": [block]}])
        assert turn["reasoning_content"] == (shown or "")


@pytest.mark.parametrize(
    ("given_input", "taken"), [(None, {}), ("", {}), ('{"b": 1}', {"b": 1}), ("{bad", {"arguments": "{bad"})]
)
def test_input_of_past_calls_is_kept_whatever_it_is(given_input: Any, taken: dict[str, Any]) -> None:
    block = {"type": "tool_use", "id": "1", "name": "f", "input": given_input}
    (turn,) = from_messages([{"role": "assistant", "content": [block]}])
    assert turn["tool_calls"][0]["function"]["arguments"] == taken


def test_documents_are_text_set_off_by_blank_lines() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "One."}}
    titled = {
        "type": "document",
        "title": "Notes",
        "context": "Old.",
        "citations": {"enabled": False},
        "source": {"type": "content", "content": [text("Two"), text(".")]},
    }
    (turn,) = from_messages([{"role": "user", "content": [plain, titled, text("Compare.")]}])
    assert turn["content"] == "One.\n\nNotes\n\nOld.\n\nTwo.\n\nCompare."
    (tool,) = from_messages([{"role": "user", "content": [result(1, [plain])]}])
    assert tool["content"] == "One.\n\n"


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("hi", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [text("x"), {"type": "text", "text": 5}]}, "messages[0].content[1].text"),
        ({"role": "user", "content": [IMAGE]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [PDF]}, "messages[0].content[0].source.type"),
        ({"role": "user", "content": [{"type": "document", "source": "x"}]}, "messages[0].content[0].source"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "text"}}]},
         "messages[0].content[0].source.data"),
        ({"role": "user", "content": [{"type": "document", "title": 5, "source": {"type": "text", "data": ""}}]},
         "messages[0].content[0]"),
        ({"role": "user", "content": [{**PDF, "citations": {"enabled": True}}]}, "messages[0].content[0].citations"),
        ({"role": "user", "content": [use(1)]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "messages[0].content[0].tool_use_id"),
        ({"role": "user", "content": [result(1, [text("x"), IMAGE])]}, "messages[0].content[0].content[1].type"),
        ({"role": "user", "content": [result(1, 5)]}, "messages[0].content[0].content"),
        ({"role": "system", "content": [result(1)]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": [result(1)]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": [{"type": "server_tool_use", "id": "1", "name": "x", "input": {}}]},
         "messages[0].content[0].type"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}, "messages[0].content[0].name"),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}, "messages[0].content[0].thinking"),
    ],
)  # fmt: skip
def test_refusal_names_the_place(message: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        from_messages([message])
    assert (caught.value.status, caught.value.param) == (400, path)


@pytest.mark.parametrize(
    ("system", "path"), [(5, "system"), ({}, "system"), (["x"], "system[0]"), ([text("x"), IMAGE], "system[1].type")]
)
def test_refusal_names_the_place_in_the_system_prompt(system: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        from_messages([{"role": "user", "content": "hi"}], system)
    assert (caught.value.status, caught.value.param) == (400, path)


def with_late_system(folder: Path, then: str) -> ChatFormat:
    """The demo's format, with a template that does something else at a later system turn."""
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    template = folder / "chat_template.jinja"
    shown = "{{- '<|im_start|>system\\n' + m['content'] + '<|im_end|>\\n' -}}{%- endif -%}\n{%- elif"
    assert shown in template.read_text()
    template.write_text(template.read_text().replace(shown, f"{then}{{%- endif -%}}\n{{%- elif"))
    return load_chat_format(folder)


LATE = [
    {"role": "system", "content": "base"},
    {"role": "user", "content": "hello"},
    {"role": "system", "content": "extra context"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "go on"},
]


@pytest.mark.parametrize("then", ["{{- raise_exception('System message must be at the beginning.') -}}", ""])
def test_later_system_turns_keep_place_and_text_where_the_template_knows_none(tmp_path: Path, then: str) -> None:
    chat = with_late_system(tmp_path / "model", then)
    prompt = chat.render(LATE)
    said = chat.decode(prompt)
    assert said.index("hello") < said.index("extra context") < said.index("ok<") < said.index("go on")
    without = chat.render([turn for turn in LATE if turn["content"] != "extra context"])
    shared = len(chat.encode("<|im_start|>system\nbase<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"))
    assert prompt[:shared] == without[:shared]


def test_later_system_turns_stay_system_turns_where_the_template_shows_them(scripted: ScriptedEngine) -> None:
    said = scripted.chat.decode(scripted.chat.render(LATE))
    assert "<|im_start|>system\nextra context<|im_end|>" in said
