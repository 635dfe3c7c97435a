"""/v1/mtplx/requests: what runs and what ran, what was sent to the model token by token, and how to end it.

Figures are for everyone who may ask. Where the server has several keys, what was said in a request is for its own key
alone, and so is ending it.
"""

import asyncio
import time

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from server.api.admin import RequestDetail, Requests
from server.api.document import documented
from server.api.inputs import COUNT
from server.backend import Backend
from server.errors import ApiError, invalid
from server.facts import RequestFacts
from server.journal import Entry, Journal
from server.keys import CALLER
from server.request_detail import chat_of, detail, figures

_FOREIGN = "The request came with another key."


def routes(backend: Backend) -> APIRouter:
    """The list, one request with its tokens, and cancel."""
    router = APIRouter(prefix="/v1/mtplx/requests")
    journal, engine = backend.telemetry.journal, backend.engine

    @router.get("", **documented("Requests, the oldest first", Requests, errors=(400,), query={"limit": COUNT}))
    async def requests(request: Request) -> Response:
        most = _number(request.query_params, "limit")
        facts = journal.facts()
        shown = facts if most is None else facts[max(len(facts) - most, 0) :]
        return Response(to_json({"requests": shown}), media_type="application/json")

    @router.get(
        "/{request_id}",
        **documented(
            "A request, token by token",
            RequestDetail,
            errors=(400, 404),
            query=dict.fromkeys(("prompt_start", "prompt_count", "answer_start", "answer_count"), COUNT),
        ),
    )
    async def one(request_id: str, request: Request) -> Response:
        entry = _known(journal, request_id)
        if entry.hidden_from(CALLER.get()):
            return Response(to_json(figures(entry, _FOREIGN)), media_type="application/json")
        windows = [_window(request.query_params, part) for part in ("prompt", "answer")]
        body = await asyncio.to_thread(lambda: to_json(detail(entry, chat_of(engine), *windows)))  # may be long
        return Response(body, media_type="application/json")

    @router.post("/{request_id}/cancel", **documented("End a request", RequestFacts, errors=(400, 404, 415)))
    async def cancel(request_id: str) -> Response:
        entry = _known(journal, request_id)
        if entry.hidden_from(CALLER.get()):
            raise ApiError(403, f"{_FOREIGN} Only that one may end it.", code="other_key")
        if entry.finish is None:
            engine.cancel(request_id)
        return Response(to_json(entry.facts(time.monotonic())), media_type="application/json")

    return router


def _known(journal: Journal, request_id: str) -> Entry:
    entry = journal.find(request_id)
    if entry is None:
        raise ApiError(
            404,
            f"There is no request {request_id[:100]!r}; GET /v1/mtplx/requests lists those that run, and the last "
            "that ended.",
            code="request_not_found",
        )
    return entry


def _number(query: QueryParams, name: str) -> int | None:
    given = query.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise invalid(name, f"must be a whole number from 0 on; got {given[:40]!r}")
    return int(given)


def _window(query: QueryParams, part: str) -> slice:
    """Which tokens of the prompt or the answer are asked for: all, unless `_start` and `_count` say otherwise."""
    start, count = _number(query, f"{part}_start") or 0, _number(query, f"{part}_count")
    return slice(start, None if count is None else start + count)
