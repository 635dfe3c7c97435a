"""A chat completion's body to engine requests: every field honoured, refused with its path, or listed as ignored."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from engine.request import MAX_TOP_LOGPROBS, Request
from server.ask import Ask, requests_of
from server.backend import Backend
from server.chat_tools import FunctionFields, ToolFields, tools_of
from server.conversation import from_chat
from server.errors import invalid
from server.fields import SamplingFields
from server.jsonbody import Fields, Whole, check, parse
from server.models import require_named, served
from server.response_format import ResponseFormat, grammar
from server.template_options import template_options
from server.tools import Tools


class StreamOptions(Fields):
    """`continuous_usage_stats`: each chunk says how many tokens there are so far, where usage is asked for at all."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def usage_so_far(self) -> bool:
        return bool(self.include_usage and self.continuous_usage_stats)


class Thinking(Fields):
    type: Literal["enabled", "adaptive", "disabled"]


class ChatFields(SamplingFields):
    """The body of POST /v1/chat/completions."""

    model: str | None = None
    messages: list[Any] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Whole | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: Thinking | None = None
    tools: list[ToolFields] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionFields] | None = None
    function_call: Any = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: Any = None


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A checked chat completion.

    Attributes:
        requests: one a choice, the first with the id that the client sees. ignored: fields that change nothing.
    """

    model: str
    requests: tuple[Request, ...]
    tools: Tools
    stream: bool
    include_usage: bool
    usage_so_far: bool
    logprobs: bool
    ignored: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.requests[0].id


def plan_chat(backend: Backend, raw: bytes, completion_id: str, source: str) -> ChatPlan:
    """Check a body and render its prompt. Slow for long prompts, so it belongs off the event loop.

    Raises:
        ApiError: for all that can not be run. BadRequestError: from the model's template.
    """
    model = served(backend)
    data = parse(raw)
    fields = check(ChatFields, data)
    require_named(fields.model, model, backend.settings.value)
    _refuse_sound(fields)
    thinking, options = template_options(fields.chat_template_kwargs, _effort(fields), backend.engine.chat)
    most = fields.max_completion_tokens or fields.max_tokens
    ask = Ask(
        turns=from_chat(fields.messages),
        sampling=fields.sampling(model.sampling, model.vocab_size),
        tools=tools_of(data),
        thinking=thinking,
        options=options,
        max_tokens=most,
        stop=fields.stops(),
        seed=fields.seed,
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.least(most),
        logprobs=_logprobs(fields),
        answer=grammar(fields.response_format),
        n=fields.n or 1,
        source=source,
    )
    return ChatPlan(
        model=model.name,
        requests=requests_of(backend, model, ask, completion_id),
        tools=ask.tools,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        usage_so_far=bool(fields.stream_options and fields.stream_options.usage_so_far),
        logprobs=bool(fields.logprobs),
        ignored=tuple(_ignored(fields)),
    )


def _refuse_sound(fields: ChatFields) -> None:
    # Answering with text all the same would be a silent fallback.
    if fields.audio is not None or any(modality != "text" for modality in fields.modalities or ()):
        raise invalid("audio" if fields.audio is not None else "modalities", "this model writes text only")


def _effort(fields: ChatFields) -> str | None:
    """How hard to think; `thinking` says whether at all, and outranks an effort that says so too."""
    if fields.thinking is None:
        return fields.reasoning_effort
    if fields.thinking.type == "disabled":
        return "none"
    return None if fields.reasoning_effort == "none" else fields.reasoning_effort


def _logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs is not None:
        raise invalid("top_logprobs", "needs logprobs: true")
    return None


def _ignored(fields: ChatFields) -> Iterable[str]:
    yield from fields.model_extra or ()
    if fields.tools:
        yield from (name for name in ("functions", "function_call") if getattr(fields, name) is not None)
    for inner in ("stream_options", "thinking"):
        yield from (f"{inner}.{name}" for name in getattr(getattr(fields, inner), "model_extra", None) or ())
