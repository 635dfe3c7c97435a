"""/v1/mtplx/ask: a chat's question, answered to whoever watches the events, whether or not its asker stays.

A screen on another machine loses its connection now and then. The answer must not end with it, and nothing of it may
be missing afterwards: so the question only starts it, the events tell it, and `/answer` has what was missed.
"""

import asyncio
from contextlib import suppress
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from pydantic_core import to_json
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.chat import ChatFormat
from engine.events import FinishEvent, Span
from engine.request import MAX_TOP_LOGPROBS, Request
from engine.text import TextStream
from server.api.admin import Started
from server.api.document import documented
from server.api.inputs import CHAT_MESSAGES, SAMPLING
from server.ask import Ask, requests_of
from server.backend import Backend
from server.chat_tools import ToolFields, tools_of
from server.conversation import from_chat
from server.errors import ApiError, invalid
from server.facts import AnswerFacts
from server.fields import SamplingFields
from server.generation import Generation
from server.headers import ignored_header
from server.journal import Entry, Journal
from server.jsonbody import Whole, check, parse
from server.keys import CALLER
from server.models import served

SOURCE = "chat"


class AskFields(SamplingFields):
    """The body of POST /v1/mtplx/ask: the sampling fields of a chat completion, and these.

    `logprobs` is how many alternatives to tell beside each token's own.
    """

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    messages: list[Any] = Field(min_length=1)
    thinking: bool | None = None
    tools: list[ToolFields] | None = None
    logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)


def routes(backend: Backend) -> APIRouter:
    """POST /ask, and GET /requests/{id}/answer."""
    router = APIRouter(prefix="/v1/mtplx")
    journal, generations = backend.telemetry.journal, backend.generations
    running: set[asyncio.Task[None]] = set()

    @router.post(
        "/ask",
        **documented(
            "Ask a question whose answer the events tell",
            Started,
            status=202,
            errors=(404, 409, 429),
            body=AskFields,
            fields={"messages": CHAT_MESSAGES, **SAMPLING},
            example={"id": "a-question", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
        ),
    )
    async def ask(request: HttpRequest) -> Response:
        planned, ignored = await asyncio.to_thread(_plan, backend, await request.body())
        if journal.find(planned.id) is not None:
            raise ApiError(
                409, f"There is a request {planned.id!r} already; choose another id.", param="id", code="id_taken"
            )
        task = asyncio.create_task(_run(backend, generations.submit((planned,))))
        running.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(running.discard)
        return Response(to_json({"id": planned.id}), 202, ignored_header(ignored), "application/json")

    @router.get(
        "/requests/{request_id}/answer",
        **documented("What a request has been answered so far", AnswerFacts, errors=(400, 404, 410)),
    )
    async def answer(request_id: str) -> Response:
        entry = _own(journal, request_id)
        facts = await asyncio.to_thread(_facts, entry, backend.engine.chat)
        return Response(to_json(facts), media_type="application/json")

    return router


def _plan(backend: Backend, raw: bytes) -> tuple[Request, tuple[str, ...]]:
    """A checked and rendered question, and the fields that change nothing. Slow for long prompts."""
    model = served(backend)
    data = parse(raw)
    fields = check(AskFields, data)
    if fields.n not in (None, 1):
        raise invalid("n", f"must be 1, a chat has one answer; got {fields.n}")
    ask = Ask(
        turns=from_chat(fields.messages),
        sampling=fields.sampling(model.sampling, model.vocab_size),
        tools=tools_of({"tools": data.get("tools")}),
        thinking=fields.thinking is not False,
        max_tokens=fields.max_tokens,
        stop=fields.stops(),
        seed=fields.seed,
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.least(fields.max_tokens),
        logprobs=fields.logprobs,
        source=SOURCE,
    )
    (planned,) = requests_of(backend, model, ask, fields.id)
    return planned, tuple(fields.model_extra or ())


async def _run(backend: Backend, generation: Generation) -> None:
    """See a generation to its end: one that waits too long, or that a shutdown ends, is cancelled."""
    with backend.generations.running(generation), suppress(ApiError):
        async for _ in generation.batches():
            pass


def _own(journal: Journal, request_id: str) -> Entry:
    """The entry of a request whose answer can be told, to this caller. Raises ApiError."""
    entry = journal.find(request_id)
    if entry is None or entry.asked is None:
        raise ApiError(404, f"No request {request_id[:100]!r} came through this server.", code="request_not_found")
    if entry.hidden_from(CALLER.get()):
        raise ApiError(403, "The request came with another key. Only that one may read it.", code="other_key")
    if entry.asked.raw:
        raise invalid("id", "is a plain completion's; GET /v1/mtplx/requests/{id} has its tokens")
    return entry


def _facts(entry: Entry, chat: ChatFormat) -> AnswerFacts:
    finish = entry.finish  # first: once it is there, nothing is added to the rest
    count, at = entry.told
    prompt, made, asked = entry.prompt, entry.answer, entry.asked
    if prompt is None or made is None or asked is None:
        raise ApiError(
            410, "The request ended too long ago; its tokens are not kept any more.", code="answer_forgotten"
        )
    ids = tuple(made[:count])
    stream = TextStream(chat, stops=asked.stop, kind=chat.starts_in(prompt))
    return AnswerFacts(entry.id, ids, tuple(_spans(stream, ids, finish)), at, finish)


def _spans(stream: TextStream, ids: tuple[int, ...], finish: FinishEvent | None) -> list[Span]:
    """The text of the tokens, neighbours of a kind joined; what is held back comes with the end."""
    told = [span for token in ids for span in stream.push(token)]
    if finish is not None:
        told += stream.finish()
    joined: list[Span] = []
    for span in told:
        if joined and not span.opens and joined[-1].kind == span.kind:
            joined[-1] = Span(span.kind, joined[-1].text + span.text, joined[-1].opens)
        else:
            joined.append(span)
    return joined
