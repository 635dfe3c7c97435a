"""What the streams of server-sent events hold: the JSON of their `data`, and how the document tells of it."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from server.api.errors import AnthropicError, Error, Shape
from server.api.openai import ChatLogprobs, FinishReason, LegacyLogprobs, Usage, UsageSoFar


class FunctionDelta(Shape):
    name: str = ""
    arguments: str


class CallDelta(Shape):
    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionDelta


class Delta(Shape):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[CallDelta] = Field(default=[])


class ChunkChoice(Shape):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Shape):
    """`usage` comes last and alone, where it was asked for, or with every chunk."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChunkChoice]
    usage: Usage | UsageSoFar | None = None


class TextChunkChoice(Shape):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishReason | None


class TextChunk(Shape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[TextChunkChoice]
    usage: Usage | UsageSoFar | None = None


class MessageEvent(Shape):
    """One of the Messages API's events; what else it has goes by its type."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "ping",
    ]  # fmt: skip


class ResponseEvent(Shape):
    """One of the Responses API's events; what else it has goes by its type."""

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed",
        "response.output_item.added", "response.output_item.done", "response.content_part.added",
        "response.content_part.done", "response.output_text.delta", "response.output_text.done",
        "response.reasoning_summary_part.added", "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
    ]  # fmt: skip
    sequence_number: int


class EngineFrame(Shape):
    """One of the engine's events, a Hello or a Lost; what else it has goes by its type."""

    model_config = ConfigDict(extra="allow")

    type: str


Chat = ChatChunk | Error
Text = TextChunk | Error
Messages = MessageEvent | AnthropicError


def frame(form: Any, last: str | None = None) -> dict[str, Any]:
    """The JSON schema of one event whose data is JSON of this form; `last` is what the stream ends with, if it does."""
    of_data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": TypeAdapter(form).json_schema(ref_template="#/components/schemas/Stream.{model}"),
    }
    inner = of_data["contentSchema"]
    if "$defs" in inner:
        inner["$defs"] = {f"Stream.{name}": definition for name, definition in inner["$defs"].items()}
    data = of_data if last is None else {"anyOf": [{"const": last}, of_data]}
    return {"type": "object", "required": ["data"], "properties": {"event": {"type": "string"}, "data": data}}
