"""/v1/mtplx/requests: what runs and what ran, what was sent to the model token by token, and how to end it.

Figures are for everyone who may ask. Where the server has several keys, what was said in a request is for its own key
alone, and so is ending it.
"""

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from engine.chat import ChatFormat
from engine.errors import EngineError
from engine.handle import EngineHandle
from server.backend import Backend
from server.errors import ApiError, invalid
from server.journal import Entry, Journal
from server.keys import CALLER

_NOT_ASKED = ("prompt", "id", "source", "cache_scope")  # what is told elsewhere, or is no client's choice
_ELSEWHERE = "The request did not come through this server, which has seen its events only."
_FOREIGN = "The request came with another key."
_FORGOTTEN = "The request ended too long ago; its tokens are not kept any more."


def routes(backend: Backend) -> APIRouter:
    """The list, one request with its tokens, and cancel."""
    router = APIRouter(prefix="/v1/mtplx/requests")
    journal, engine = backend.telemetry.journal, backend.engine

    @router.get("")
    async def requests(request: Request) -> Response:
        most = _number(request.query_params, "limit")
        facts = journal.facts()
        shown = facts if most is None else facts[max(len(facts) - most, 0) :]
        return Response(to_json({"requests": shown}), media_type="application/json")

    @router.get("/{request_id}")
    async def one(request_id: str, request: Request) -> Response:
        entry = _known(journal, request_id)
        if entry.hidden_from(CALLER.get()):
            return Response(to_json(_figures(entry, _FOREIGN)), media_type="application/json")
        windows = [_window(request.query_params, part) for part in ("prompt", "answer")]
        body = await asyncio.to_thread(_detail, entry, _chat(engine), *windows)  # prompts may be long
        return Response(body, media_type="application/json")

    @router.post("/{request_id}/cancel")
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


def _chat(engine: EngineHandle) -> ChatFormat | None:
    """The tokenizer; None where the engine has failed, and so can not tell what tokens mean."""
    try:
        return engine.chat
    except EngineError:
        return None


def _figures(entry: Entry, why: str) -> dict[str, Any]:
    """One request without what was said in it, and why that is missing."""
    facts = entry.facts(time.monotonic())
    return {
        **asdict(facts),
        "asked": None,
        "cache": {"prompt_tokens": facts.prompt_tokens, "cached_tokens": facts.cached_tokens, "why": facts.miss},
        "prompt": _none(why),
        "answer": _none(why),
    }


def _detail(entry: Entry, chat: ChatFormat | None, prompt: slice, answer: slice) -> bytes:
    sent, made = entry.prompt, entry.answer  # read once: the engine's thread may forget them meanwhile
    body = _figures(entry, _ELSEWHERE if entry.asked is None else _FORGOTTEN)
    if entry.asked is not None:
        asked = {name: value for name, value in asdict(entry.asked).items() if name not in _NOT_ASKED}
        seed = entry.asked.seed if entry.queued is None else entry.queued.seed
        body["asked"] = asked | {"seed": seed}
    if sent is not None:
        body["prompt"] = _tokens(sent, prompt, chat)
        for place, token in enumerate(body["prompt"]["tokens"], body["prompt"]["start"]):
            token["cached"] = place < entry.cached
    if made is not None:
        body["answer"] = _tokens(made, answer, chat)
    return to_json(body)


def _tokens(ids: Sequence[int], window: slice, chat: ChatFormat | None) -> dict[str, Any]:
    """The tokens in a window of `ids`."""
    start = min(window.start, len(ids))
    return {"total": len(ids), "start": start, "tokens": list(_told(ids[window], chat)), "why": None}


def _none(why: str) -> dict[str, Any]:
    """No tokens, and the reason."""
    return {"total": None, "start": None, "tokens": None, "why": why}


def _told(ids: Sequence[int], chat: ChatFormat | None) -> Iterator[dict[str, Any]]:
    """Each token with its text; with its bytes as well, in base64, where these alone are no text."""
    special = frozenset[int]() if chat is None else chat.special_ids
    for token in ids:
        told: dict[str, Any] = {"id": token, "text": None, "special": token in special}
        if chat is not None:
            raw = chat.token_bytes(token)
            told["text"] = raw.decode("utf-8", "replace")
            if told["text"].encode() != raw:
                told["bytes"] = base64.urlsafe_b64encode(raw).decode()
        yield told
