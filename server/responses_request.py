"""A Responses body to an engine request: every field honoured, refused with its path, or listed as ignored."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from engine.errors import EngineError
from engine.handle import ModelInfo
from engine.request import Grammar, Request, Sampling
from server.ask import Ask, requests_of
from server.backend import Backend
from server.errors import ApiError, from_engine, invalid
from server.fields import SamplingFields
from server.jsonbody import Fields, Whole, check, parse
from server.models import require_named, served
from server.response_format import JsonSchema, ResponseFormat, grammar
from server.responses_conversation import Input
from server.responses_tools import ToolList
from server.template_options import template_options
from server.tools import Tools

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_OWN_PATHS = {"messages": "input", "response_format.json_schema": "text.format", "response_format": "text.format"}


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, min_length=1, max_length=64)
    description: str | None = None
    strict: bool | None = None
    answer: dict[str, Any] | None = Field(None, alias="schema")


class TextFields(Fields):
    format: TextFormat | None = None


class ReasoningFields(Fields):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Fields):
    pass


class ResponseFields(SamplingFields):
    """The body of POST /v1/responses."""

    model: str | None = None
    input: Any = Field()
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningFields | None = None
    text: TextFields | None = None
    max_output_tokens: Whole | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    store: bool | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A checked request for a response.

    Attributes:
        request: has the response's id. box: knows the client's names of the tools.
        head: fields of the response that stay the same while it is made.
        ignored: names of what changes nothing.
    """

    request: Request
    tools: Tools
    box: ToolList
    head: dict[str, Any]
    stream: bool
    ignored: tuple[str, ...]


def plan_response(backend: Backend, raw: bytes, response_id: str, source: str) -> ResponsePlan:
    """Check a body and render its prompt. Slow for long prompts, so it belongs off the event loop.

    Raises:
        ApiError: for all that can not be run.
    """
    model = served(backend)
    data = parse(raw)
    fields = check(ResponseFields, data)
    require_named(fields.model, model, backend.settings.value)
    _refuse_stored(fields)
    box = ToolList()
    box.add(fields.tools or (), "tools")
    given = Input(box)
    turns = given.turns(fields.input, fields.instructions)
    sampling = fields.sampling(model.sampling, model.vocab_size)
    effort = None if fields.reasoning is None else fields.reasoning.effort
    thinking, options = template_options(None, effort, backend.engine.chat)
    most = fields.max_output_tokens or fields.max_tokens
    with own_paths(box):
        ask = Ask(
            turns=turns,
            sampling=sampling,
            tools=box.chosen(fields.tool_choice, fields.parallel_tool_calls is not False),
            thinking=thinking,
            options=options,
            max_tokens=most,
            stop=fields.stops(),
            seed=fields.seed,
            ignore_eos=bool(fields.ignore_eos),
            min_tokens=fields.least(most),
            answer=_answer(fields.text),
            source=source,
        )
        (request,) = requests_of(backend, model, ask, response_id)
    return ResponsePlan(
        request=request,
        tools=ask.tools,
        box=box,
        head=_head(response_id, model, fields, data, sampling, box),
        stream=bool(fields.stream),
        ignored=(*_ignored(fields), *box.ignored, *given.ignored),
    )


@contextmanager
def own_paths(box: ToolList) -> Iterator[None]:
    """Let errors of code that all endpoints share name this API's fields.

    Raises:
        ApiError: also for what was an EngineError.
    """
    try:
        yield
    except EngineError as error:
        raise _renamed(from_engine(error), box) from error
    except ApiError as error:
        raise _renamed(error, box) from None


def _renamed(error: ApiError, box: ToolList) -> ApiError:
    if error.param is not None:
        path = error.param
        name = next((name for name in _OWN_PATHS if path == name or path.startswith(name + ".")), None)
        error.param = box.own_path(path) if name is None else _OWN_PATHS[name] + path.removeprefix(name)
        if error.message.startswith(path + ":"):
            error.message = error.param + error.message.removeprefix(path)
    return error


def _refuse_stored(fields: ResponseFields) -> None:
    """Nothing is stored and all is done at once: what asks for more can not be answered as it was meant."""
    if fields.previous_response_id is not None:
        raise ApiError(
            404,
            f"There is no response {fields.previous_response_id[:100]!r} here: this server stores none. "
            "Send the whole conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if fields.conversation is not None:
        raise invalid("conversation", "none are stored here; send the whole conversation as input")
    if fields.prompt is not None:
        raise invalid("prompt", "none are stored here; send instructions and input")
    if fields.background:
        raise invalid("background", "responses are not stored, so they can not be made in the background")
    if fields.n is not None and fields.n > 1:
        raise invalid("n", "a response is one answer; ask /v1/chat/completions for several")
    if fields.top_logprobs or _LOGPROBS in (fields.include or ()):
        path = "top_logprobs" if fields.top_logprobs else "include"
        raise invalid(path, "log-probabilities are given by /v1/chat/completions only")


def _answer(text: TextFields | None) -> Grammar | None:
    """What the text of the answer must look like, by the checks of the chat endpoint."""
    given = None if text is None else text.format
    if given is None:
        return None
    if given.type != "json_schema":
        return grammar(ResponseFormat(type=given.type))
    if given.name is None or given.answer is None:
        missing = "schema" if given.answer is None else "name"
        raise invalid(f"text.format.{missing}", "is needed where the type is json_schema")
    return grammar(ResponseFormat(type=given.type, json_schema=JsonSchema(name=given.name, schema=given.answer)))


def _head(
    response_id: str, model: ModelInfo, fields: ResponseFields, data: dict[str, Any], sampling: Sampling, box: ToolList
) -> dict[str, Any]:
    reasoning, text = data.get("reasoning") or {}, data.get("text") or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model.name,
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": fields.tool_choice or "auto",
        "tools": box.as_sent,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }


def _ignored(fields: ResponseFields) -> Iterable[str]:
    yield from fields.model_extra or ()
    for name, inner in (
        ("text", fields.text),
        ("text.format", fields.text and fields.text.format),
        ("reasoning", fields.reasoning),
        ("stream_options", fields.stream_options),
    ):
        yield from (f"{name}.{extra}" for extra in (inner and inner.model_extra) or ())
    yield from (f"include.{kind}" for kind in fields.include or () if kind != _ENCRYPTED)
    if fields.store:
        yield "store"
    if fields.truncation == "auto":  # a conversation that does not fit is refused, never cut
        yield "truncation"
