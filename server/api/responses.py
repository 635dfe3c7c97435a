"""The answer of OpenAI's Responses endpoint."""

from typing import Any, Literal

from server.api.errors import Shape

Status = Literal["completed", "incomplete"]


class OutputText(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(Shape):
    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class SummaryText(Shape):
    type: Literal["summary_text"]
    text: str


class Reasoning(Shape):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[SummaryText]
    encrypted_content: None


class OutputFunctionCall(Shape):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    namespace: str = ""
    arguments: str


class OutputCustomCall(Shape):
    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: str
    name: str
    namespace: str = ""
    input: str


class InputTokens(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(Shape):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Incomplete(Shape):
    reason: Literal["max_output_tokens"]


class AskedReasoning(Shape):
    effort: str | None
    summary: str | None


class ResponseText(Shape):
    format: dict[str, Any]


class Response(Shape):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: AskedReasoning
    store: bool
    temperature: float
    text: ResponseText
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    status: Status
    completed_at: int | None
    error: None
    incomplete_details: Incomplete | None
    output: list[OutputMessage | Reasoning | OutputFunctionCall | OutputCustomCall]
    usage: ResponseUsage | None
