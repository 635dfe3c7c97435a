"""POST /v1/responses: body -> engine request -> events -> one response, whole or as a stream of events."""

import asyncio
import secrets
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from engine.handle import EngineHandle
from server.api import streams
from server.api.document import documented
from server.api.inputs import NULL, RESPONSE_CHOICE, RESPONSE_INPUT, RESPONSE_TOOLS, SAMPLING
from server.api.responses import Response as Answered
from server.backend import Backend
from server.generation import Generation
from server.headers import ignored_header, source
from server.responses_output import Output
from server.responses_request import ResponseFields, ResponsePlan, own_paths, plan_response
from server.responses_stream import ResponseFrames
from server.stream import EventStream


def routes(backend: Backend) -> APIRouter:
    """The endpoint under its two paths."""
    router = APIRouter()
    engine, generations = backend.engine, backend.generations

    @router.post(
        "/v1/responses",
        **documented(
            "Make a response",
            Answered,
            errors=(404, 429),
            body=ResponseFields,
            fields={
                "input": RESPONSE_INPUT,
                "tools": RESPONSE_TOOLS,
                "tool_choice": RESPONSE_CHOICE,
                **SAMPLING,
                "conversation": NULL,
                "prompt": NULL,
            },
            example={"input": "What is 2 + 3?", "max_output_tokens": 8},
            events=streams.frame(streams.ResponseEvent),
        ),
    )
    @router.post("/responses", include_in_schema=False)
    async def create(request: Request) -> Response:
        raw = await request.body()
        response_id = "resp_" + secrets.token_hex(12)
        who = source(request.headers.get("user-agent", ""))
        plan = await asyncio.to_thread(plan_response, backend, raw, response_id, who)
        with own_paths(plan.box):
            generation = generations.submit([plan.request])
        headers = ignored_header(plan.ignored)
        if plan.stream:
            return EventStream(generations, generation, ResponseFrames(plan, engine), headers)
        with generations.running(generation):
            response = await _whole(plan, engine, generation)
        return Response(to_json(response), 200, headers, "application/json")

    return router


async def _whole(plan: ResponsePlan, engine: EngineHandle, generation: Generation) -> dict[str, Any]:
    """What a stream would have ended with."""
    output = Output(plan, engine)
    async for batch in generation.batches():
        for _ in output.take(event for _, event in batch):
            pass
    *_, last = output.end()
    response: dict[str, Any] = last["response"]
    return response
