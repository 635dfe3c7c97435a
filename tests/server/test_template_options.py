"""What a request may choose of a chat template: what that template reads, and nothing that stands for its input."""

from copy import copy
from typing import Any

import pytest
from chat_templates import XML
from transformers import PreTrainedTokenizerFast

from engine.chat import ChatFormat
from engine.models.locate import ASSETS
from server.errors import ApiError
from server.template_options import template_options

EFFORT = "{{ reasoning_effort }} {{ messages[0].content }}"


def chat_with(template: str) -> ChatFormat:
    tokenizer = copy(PreTrainedTokenizerFast.from_pretrained(ASSETS / "demo-13m"))
    tokenizer.chat_template = template
    return ChatFormat(tokenizer)


def test_what_a_template_reads_can_be_chosen() -> None:
    xml, effort = chat_with(XML), chat_with(EFFORT)
    cases: list[tuple[ChatFormat, dict[str, Any] | None, str | None, bool, dict[str, Any]]] = [
        (xml, None, None, True, {}),
        (xml, {"enable_thinking": False, "preserve_thinking": True}, None, False, {"preserve_thinking": True}),
        (xml, {"enable_thinking": None, "no such name": None}, "none", False, {}),
        (xml, {"enable_thinking": True}, "none", True, {}),
        (xml, None, "high", True, {}),
        (effort, None, "high", True, {"reasoning_effort": "high"}),
        (effort, {"reasoning_effort": "low"}, "high", True, {"reasoning_effort": "low"}),
        (effort, None, "none", False, {}),
    ]
    for chat, kwargs, asked, thinking, options in cases:
        assert template_options(kwargs, asked, chat) == (thinking, options), (kwargs, asked)


def test_everything_else_is_refused_with_its_path() -> None:
    xml, effort = chat_with(XML), chat_with(EFFORT)
    cases: list[tuple[ChatFormat, dict[str, Any]]] = [
        (xml, {"messages": []}),
        (xml, {"chat_template": "x"}),
        (xml, {"tools": []}),
        (xml, {"add_generation_prompt": False}),
        (xml, {"reasoning_effort": "high"}),
        (effort, {"preserve_thinking": True}),
        (xml, {"preserve_thinking": 1}),
        (xml, {"enable_thinking": "yes"}),
        (effort, {"reasoning_effort": 3}),
    ]
    for chat, kwargs in cases:
        with pytest.raises(ApiError) as refusal:
            template_options(kwargs, None, chat)
        (name,) = kwargs
        assert (refusal.value.status, refusal.value.param) == (400, f"chat_template_kwargs.{name}")
