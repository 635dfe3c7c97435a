"""POST /v1/messages and /v1/messages/count_tokens: body -> engine request -> events -> one message, or its events."""

import asyncio
import secrets

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from server.answer import Answer, gather
from server.anthropic_request import MessagesFields, count_tokens, plan_message
from server.anthropic_shapes import message
from server.anthropic_stream import MessageEvents
from server.api import streams
from server.api.anthropic import Message, TokenCount
from server.api.document import documented
from server.api.inputs import MESSAGE_TOOLS, MESSAGES, SAMPLING, SYSTEM
from server.backend import Backend
from server.headers import ignored_header, source
from server.stream import EventStream

_FIELDS = {"messages": MESSAGES, "system": SYSTEM, "tools": MESSAGE_TOOLS, **SAMPLING}
_EXAMPLE = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8}


def routes(backend: Backend) -> APIRouter:
    """Both endpoints."""
    router = APIRouter()
    engine, generations = backend.engine, backend.generations

    @router.post(
        "/v1/messages",
        **documented(
            "Answer messages",
            Message,
            errors=(404, 529),
            body=MessagesFields,
            fields=_FIELDS,
            example=_EXAMPLE,
            events=streams.frame(streams.Messages),
            anthropic=True,
        ),
    )
    async def messages(request: Request) -> Response:
        raw = await request.body()
        message_id = "msg_" + secrets.token_hex(12)
        who = source(request.headers.get("user-agent", ""))
        plan = await asyncio.to_thread(plan_message, backend, raw, message_id, who)
        generation = generations.submit([plan.request])
        headers = ignored_header(plan.ignored)
        if plan.stream:
            events = MessageEvents(plan, backend, generation, request.scope["request_id"])
            return EventStream(generations, generation, events, headers)
        with generations.running(generation):
            (answer,) = await gather(engine, generation, [Answer(engine.chat, plan.tools)])
        return Response(message(plan, answer), 200, headers, "application/json")

    @router.post(
        "/v1/messages/count_tokens",
        **documented(
            "Count the tokens of messages",
            TokenCount,
            errors=(404, 529),
            body=MessagesFields,
            fields=_FIELDS,
            example=_EXAMPLE,
            anthropic=True,
        ),
    )
    async def count(request: Request) -> Response:
        tokens, ignored = await asyncio.to_thread(count_tokens, backend, await request.body())
        return Response(to_json({"input_tokens": tokens}), 200, ignored_header(ignored), "application/json")

    return router
