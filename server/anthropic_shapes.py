"""The pieces of Anthropic's answers: usage, the reason of the end, content blocks."""

import secrets
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from engine.events import Usage
from server.answer import Whole
from server.anthropic_conversation import seal
from server.anthropic_request import MessagePlan
from server.pieces import Reasoning, Text


def usage(made: Usage) -> dict[str, Any]:
    """Token counts. The three input counts add up to the prompt; every prompt is cached, and none of it is charged as
    written to the cache."""
    return {
        "input_tokens": made.prompt_tokens - made.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": made.cached_tokens,
        "output_tokens": made.completion_tokens,
        "output_tokens_details": {"thinking_tokens": made.reasoning_tokens},
    }


def stopped(plan: MessagePlan, reason: str, stop: str | None, made: Usage) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence` of an answer that ended with `reason`, as `server.answer` has it."""
    if stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    kind = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}[reason]
    if reason == "length" and (plan.max_tokens is None or made.completion_tokens < plan.max_tokens):
        kind = "model_context_window_exceeded"
    return {"stop_reason": kind, "stop_sequence": None}


def message(plan: MessagePlan, answer: Whole) -> bytes:
    """The whole answer as JSON. A tool's input stands in it character for character as the model gave it."""
    head = {"id": plan.request.id, "type": "message", "role": "assistant", "model": plan.model}
    end = {
        **stopped(plan, answer.reason, answer.finish.stop, answer.usage),
        "usage": usage(answer.usage),
    }
    content = b",".join(_blocks(plan, answer))
    return to_json(head)[:-1] + b',"content":[' + content + b"]," + to_json(end)[1:]


def call_id() -> str:
    return "toolu_" + secrets.token_hex(12)


def _blocks(plan: MessagePlan, answer: Whole) -> Iterator[bytes]:
    for part in answer.parts:
        if isinstance(part, Reasoning):
            shown, sealed = ("", part.text) if plan.hidden else (part.text, "")
            yield to_json({"type": "thinking", "thinking": shown, "signature": seal(sealed)})
        elif isinstance(part, Text):
            yield to_json({"type": "text", "text": part.text})
        else:
            block = to_json({"type": "tool_use", "id": call_id(), "name": part.name})
            yield block[:-1] + b',"input":' + part.arguments.encode() + b"}"
