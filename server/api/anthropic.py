"""The answers of Anthropic's endpoints."""

from typing import Any, Literal

from server.api.errors import Shape


class ThinkingBlock(Shape):
    type: Literal["thinking"]
    thinking: str
    signature: str


class TextBlock(Shape):
    type: Literal["text"]
    text: str


class ToolUseBlock(Shape):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


class OutputDetails(Shape):
    thinking_tokens: int


class MessageUsage(Shape):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class Message(Shape):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: Literal["stop_sequence", "end_turn", "tool_use", "max_tokens", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Shape):
    input_tokens: int
