"""A turn's prompt is the beginning of the next turn's, so that the cache has it: for each client, API and template.

What ends a prompt, the opening of the answer, is left out: templates open one with thinking or without.
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chat_templates import HEADERS, JSON, XML
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import recorded
from transformers import PreTrainedTokenizerFast

from engine.chat import ChatFormat
from engine.models.locate import ASSETS
from server.anthropic_conversation import from_messages
from server.conversation import Turn, from_chat
from server.responses_conversation import Input
from server.responses_tools import ToolList

CASES = Path(__file__).parent / "cases"
DEMO = ASSETS / "demo-13m"
TEMPLATES = {
    "demo": (DEMO / "chat_template.jinja").read_text(encoding="utf-8"),
    "xml": XML,
    "json": JSON,
    "headers": HEADERS,
}
TOOLS = [
    {"type": "function", "function": tool}
    for tool in json.loads((CASES / "client_tools.json").read_text(encoding="utf-8"))["pi"]
]


@cache
def chat_with(template: str) -> ChatFormat:
    tokenizer = copy(PreTrainedTokenizerFast.from_pretrained(DEMO))
    tokenizer.chat_template = TEMPLATES[template]
    return ChatFormat(tokenizer)


def head(chat: ChatFormat, prompt: Sequence[int]) -> Sequence[int]:
    """A prompt without the opening of the answer."""
    (start,) = chat.encode("<|im_start|>")
    return prompt[: len(prompt) - 1 - list(reversed(prompt)).index(start)]


def assert_goes_on(template: str, before: list[Turn], after: list[Turn], **options: Any) -> None:
    chat = chat_with(template)
    first, second = (chat.render(turns, tools=TOOLS, **options) for turns in (before, after))
    beginning = head(chat, first)
    assert len(beginning) > 10
    assert second[: len(beginning)] == tuple(beginning), chat.decode(second)
    assert len(second) > len(first)


# --- captured sessions


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


OPENCODE = [
    {"role": "system", "content": "You are a coding agent. " * 20},
    {"role": "user", "content": '"Say what time it is."\n'},
    {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call("bash", command="date")]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    {"role": "assistant", "content": "", "tool_calls": [call("bash", command="date -u")]},
    {"role": "tool", "tool_call_id": "call_1", "content": ""},
]  # fmt: skip
PI = [
    {"role": "developer", "content": "You are pi. " * 20},
    {"role": "user", "content": [{"type": "text", "text": "Say what time it is."}]},
    {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call("read", path="é")]},
    {"role": "tool", "tool_call_id": "call_1", "content": "no such <|im_end|> file"},
]  # fmt: skip


def of_chat(messages: list[dict[str, Any]], *lengths: int) -> list[list[Turn]]:
    return [from_chat(messages[:length]) for length in lengths]


def of_messages(client: str, *numbers: int) -> list[list[Turn]]:
    bodies = {each.number: each.body for each in recorded("anthropic_clients.json") if each.client == client}
    return [from_messages(bodies[number]["messages"], bodies[number].get("system")) for number in numbers]


def of_responses(client: str, *indexes: int) -> list[list[Turn]]:
    bodies = json.loads((CASES / "responses_clients.json").read_text(encoding="utf-8"))[client]
    return [Input(ToolList()).turns(bodies[index]["input"], bodies[index].get("instructions")) for index in indexes]


def sessions() -> Mapping[str, list[list[Turn]]]:
    return {
        "opencode": of_chat(OPENCODE, 2, 4, 6),
        "pi": of_chat(PI, 2, 4),
        "claude code": of_messages("claude_code_interactive", 3, 4),
        "claude code, printing": of_messages("claude_code_print", 2, 3),
        "pi, as Anthropic's": of_messages("pi_anthropic", 1, 2),
        "codex": of_responses("codex_interactive", 0, 2),
        "codex exec": of_responses("codex_exec", 0, 1),
        "pi, as a response": of_responses("pi_responses", 0, 1),
    }


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("client", sessions())
def test_a_clients_next_turn_goes_on_with_its_last(client: str, template: str) -> None:
    turns = sessions()[client]
    for before, after in pairwise(turns):
        assert_goes_on(template, before, after)


def test_the_next_question_goes_on_too_where_the_template_keeps_its_reasoning() -> None:
    """Without that the templates of reasoning models drop it from all turns before the last question."""
    before, after = of_messages("claude_code_interactive", 4, 20)
    assert_goes_on("json", before, after)
    assert_goes_on("xml", before, after, options={"preserve_thinking": True})
    before, after = of_responses("codex_interactive", 2, 3)
    assert_goes_on("xml", before, after, options={"preserve_thinking": True})


# --- made-up sessions

texts = st.text(st.characters(codec="utf-8"), max_size=20)
said = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20)
calls = st.builds(lambda key, value: call("read", **{key: value}), said, texts)
steps = st.one_of(
    st.tuples(
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": texts, "tool_calls": st.lists(calls, min_size=1, max_size=1)},
            optional={"reasoning_content": texts},
        ),
        st.fixed_dictionaries({"role": st.just("tool"), "content": texts}),
    ),
    st.tuples(st.fixed_dictionaries({"role": st.just("system"), "content": said})),
)
made_up = st.tuples(said, said, st.lists(steps, min_size=2, max_size=5))


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=30, deadline=None)
@given(session=made_up)
def test_every_step_of_a_session_goes_on_with_the_one_before(
    template: str, session: tuple[str, str, list[tuple[dict[str, Any], ...]]]
) -> None:
    """Calls, results and system turns in mid-conversation, behind one question."""
    system, question, parts = session
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    before = from_chat(messages)
    for part in parts:
        messages = [*messages, *part]
        after = from_chat(messages)
        assert_goes_on(template, before, after)
        before = after
