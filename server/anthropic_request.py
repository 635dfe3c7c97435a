"""A Messages body to an engine request: every field honoured, refused with its path, or listed as ignored."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from engine.handle import ModelInfo
from engine.request import MAX_STOP_BYTES, MAX_STOPS, Grammar, Request
from server.anthropic_conversation import from_messages
from server.anthropic_tools import ToolChoice, ToolFields, tools_of
from server.ask import Ask, prompt_of, requests_of
from server.backend import Backend
from server.errors import TooLongError, invalid
from server.fields import SamplingFields
from server.jsonbody import Fields, Whole, check, parse
from server.models import require_named, served
from server.response_format import JsonSchema, ResponseFormat, grammar
from server.schemas import require_shallow
from server.tools import Tools


class Thinking(Fields):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Whole | None = Field(None, ge=1024)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Fields):
    type: Literal["json_schema"]
    answer: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesFields(SamplingFields):
    """The body of POST /v1/messages and of count_tokens.

    The fields that Anthropic's API does not have (seed, stop, min_p, penalties, logit_bias, ignore_eos,
    min_tokens) are those of chat completions.
    """

    model: str | None = None
    messages: list[Any] = Field(min_length=1)
    system: Any = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    stop_sequences: list[str] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    tools: list[ToolFields] | None = None
    tool_choice: ToolChoice | None = None
    mcp_servers: list[Any] | None = None
    n: Whole | None = Field(None, ge=1, le=1)


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """A checked request for a message.

    Attributes:
        request: has the id that the client sees. max_tokens: what the client allowed, which may be more than fits.
        hidden: thinking is not to be shown. ignored: fields that change nothing.
    """

    model: str
    request: Request
    tools: Tools
    max_tokens: int | None
    stream: bool
    hidden: bool
    ignored: tuple[str, ...]


def plan_message(backend: Backend, raw: bytes, message_id: str, source: str) -> MessagePlan:
    """Check a body and render its prompt. Slow for long prompts, so it belongs off the event loop.

    Raises:
        ApiError: for all that can not be run. BadRequestError: from the model's template.
    """
    model = served(backend)
    fields, ask, ignored = _read(backend, model, raw)
    if ask.turns[-1]["role"] == "assistant":
        raise invalid("messages", "the last one is the assistant's; this server begins a new turn and continues none")
    (request,) = requests_of(backend, model, replace(ask, source=source), message_id)
    return MessagePlan(
        model=model.name,
        request=request,
        tools=ask.tools,
        max_tokens=fields.max_tokens or backend.settings.value.max_tokens,
        stream=bool(fields.stream),
        hidden=fields.thinking is not None and fields.thinking.display == "omitted",
        ignored=ignored,
    )


def count_tokens(backend: Backend, raw: bytes) -> tuple[int, tuple[str, ...]]:
    """How many tokens the prompt of a body has, whether they fit or not, and the fields that change nothing.

    As slow as `plan_message`, and raises as it does.
    """
    model = served(backend)
    _, ask, ignored = _read(backend, model, raw)
    try:
        return len(prompt_of(backend, model, ask)), ignored
    except TooLongError as error:
        if error.unit != "tokens":
            raise
        return error.amount, ignored


def _read(backend: Backend, model: ModelInfo, raw: bytes) -> tuple[MessagesFields, Ask, tuple[str, ...]]:
    fields = check(MessagesFields, parse(raw))
    require_named(fields.model, model, backend.settings.value)
    if fields.mcp_servers:
        raise invalid("mcp_servers", "this server calls no MCP servers; leave it out, or let the client call them")
    tools, ignored = tools_of(fields.tools or (), fields.tool_choice)
    ask = Ask(
        turns=from_messages(fields.messages, fields.system),
        sampling=fields.sampling(model.sampling, model.vocab_size),
        tools=tools,
        # As in Anthropic's API: who does not ask for thinking takes an answer's first block for its text.
        thinking=fields.thinking is not None and fields.thinking.type != "disabled",
        max_tokens=fields.max_tokens,
        stop=_stops(fields),
        seed=fields.seed,
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.least(fields.max_tokens),
        answer=_answer(fields),
    )
    return fields, ask, (*ignored, *_ignored(fields))


def _stops(fields: MessagesFields) -> tuple[str, ...]:
    sequences = tuple(filter(None, fields.stop_sequences or ()))
    if len(sequences) > MAX_STOPS:
        raise invalid("stop_sequences", f"at most {MAX_STOPS} are taken; got {len(sequences)}")
    for sequence in sequences:
        if len(sequence.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
            raise invalid("stop_sequences", f"each may have {MAX_STOP_BYTES} bytes at most")
    return (*sequences, *fields.stops())


def _ignored(fields: MessagesFields) -> Iterable[str]:
    yield from fields.model_extra or ()
    if fields.thinking is not None:
        yield from (f"thinking.{name}" for name in fields.thinking.model_extra or ())
        if fields.thinking.budget_tokens is not None:
            yield "thinking.budget_tokens"
    if fields.output_config is not None:
        yield from (f"output_config.{name}" for name in fields.output_config.model_extra or ())
        if fields.output_config.effort is not None:
            yield "output_config.effort"
    if fields.tool_choice is not None:
        yield from (f"tool_choice.{name}" for name in fields.tool_choice.model_extra or ())


def _answer(fields: MessagesFields) -> Grammar | None:
    path = "output_format" if fields.output_format else "output_config.format"
    asked = fields.output_format or (fields.output_config.format if fields.output_config else None)
    if asked is None:
        return None
    require_shallow(asked.answer, f"{path}.schema")
    return grammar(ResponseFormat(type="json_schema", json_schema=JsonSchema(name="answer", schema=asked.answer)))
