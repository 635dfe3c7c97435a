"""The answers of OpenAI's endpoints: chat completions, completions, embeddings, and the list of models."""

from typing import Literal

from pydantic import Field

from server.api.errors import Shape

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(Shape):
    cached_tokens: int
    audio_tokens: int


class CompletionDetails(Shape):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    audio_tokens: int


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class UsageSoFar(Shape):
    """Within a stream, where `stream_options.continuous_usage_stats` asks for it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class LikelyToken(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Shape):
    content: list[TokenLogprobs]
    refusal: None


class CalledFunction(Shape):
    name: str
    arguments: str


class ToolCall(Shape):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = Field(default=[])


class ChatChoice(Shape):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[ChatChoice]
    usage: Usage


class LegacyLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Shape):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishReason


class TextCompletion(Shape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: list[TextChoice]
    usage: Usage


class ReadTokens(Shape):
    prompt_tokens: int
    total_tokens: int


class Embedding(Shape):
    """`embedding` is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Shape):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: ReadTokens


class RankedText(Shape):
    text: str


class Ranked(Shape):
    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(Shape):
    id: str
    object: Literal["list"]
    model: str
    results: list[Ranked]
    usage: ReadTokens


class Model(Shape):
    """One object that OpenAI's and Anthropic's clients both read."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    created: int
    created_at: str
    owned_by: str
    display_name: str
    root: str
    lifecycle: str
    context_window: int
    context_length: int
    max_model_len: int
    max_input_tokens: int
    max_output_tokens: int
    max_tokens: int


class Models(Shape):
    object: Literal["list"]
    data: list[Model]
    has_more: bool
    first_id: str
    last_id: str
