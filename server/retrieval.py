"""POST /v1/embeddings and /v1/rerank: body -> token ids -> jobs of the engine -> one JSON answer."""

import asyncio
import base64
import secrets
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from server.api.document import documented
from server.api.inputs import DOCUMENTS, TEXTS_OR_IDS
from server.api.openai import Embeddings, Ranking
from server.backend import Backend
from server.errors import BUSY_RETRY_S, ApiError
from server.headers import ignored_header
from server.health import require_ready, stalled
from server.keys import CALLER, Caller
from server.limits import Limits
from server.retrieval_request import (
    EmbeddingFields,
    EmbeddingPlan,
    RerankFields,
    RerankPlan,
    plan_embeddings,
    plan_rerank,
)

T = TypeVar("T")
MOST_AT_ONCE = 128
CHECK_S = 0.5


def routes(backend: Backend) -> APIRouter:
    """Both endpoints under all paths that clients know them by."""
    router = APIRouter()
    places = Places(backend.limits)

    @router.post(
        "/v1/embeddings",
        **documented(
            "Make vectors of texts",
            Embeddings,
            errors=(404, 429),
            body=EmbeddingFields,
            fields={"input": TEXTS_OR_IDS},
            example={"input": ["a fox", "an owl"]},
        ),
    )
    @router.post("/embeddings", include_in_schema=False)
    async def embeddings(request: Request) -> Response:
        raw = await request.body()
        with places.taken(CALLER.get()):
            plan = await asyncio.to_thread(plan_embeddings, backend, raw)
            vectors = await _result(backend, plan.retrieval.embed(plan.inputs, plan.dimensions))
        body = await asyncio.to_thread(_embeddings, plan, vectors)
        return Response(body, 200, ignored_header(plan.ignored), "application/json")

    @router.post(
        "/v1/rerank",
        **documented(
            "Score documents for a query",
            Ranking,
            errors=(404, 429),
            body=RerankFields,
            fields={"documents": DOCUMENTS},
            example={"query": "animals", "documents": ["a fox", "a stone"]},
        ),
    )
    @router.post("/v2/rerank", include_in_schema=False)
    @router.post("/rerank", include_in_schema=False)
    async def rerank(request: Request) -> Response:
        raw = await request.body()
        with places.taken(CALLER.get()):
            plan = await asyncio.to_thread(plan_rerank, backend, raw)
            scores = await _result(backend, plan.retrieval.score(plan.pairs))
        body = await asyncio.to_thread(_ranking, plan, scores)
        return Response(body, 200, ignored_header(plan.ignored), "application/json")

    return router


class Places:
    """How many of these requests are here, so that neither one client nor all together can bring any number."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._taken: Counter[Caller] = Counter()

    @contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """One place while inside. Raises ApiError 429 where there is none."""
        own = self._taken[caller] if caller.scope else 0
        if self._taken.total() >= MOST_AT_ONCE or own >= self._limits.rows_per_key:
            raise ApiError(
                429,
                f"{self._taken.total()} requests for embeddings and rankings are here, as many as may be. "
                "Try again when one has ended.",
                code="rate_limit_exceeded",
                headers={"retry-after": BUSY_RETRY_S},
            )
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1


async def _result(backend: Backend, future: "Future[T]") -> T:
    """What the engine made. A client that leaves cancels this task, and with it the work that is left.

    Raises:
        ApiError: the server stops, or the engine hangs or has stopped. EngineError: the engine's own.
    """
    result = asyncio.wrap_future(future)
    try:
        while not (await asyncio.wait([result], timeout=CHECK_S))[0]:
            if backend.generations.closing:
                raise ApiError(503, "The server is shutting down.", code="shutting_down")
            if stalled(backend.engine, backend.limits):
                raise ApiError(500, "The engine does not respond.", code="engine_stalled")
            require_ready(backend.engine)
        return result.result()
    finally:
        result.cancel()


def _embeddings(plan: EmbeddingPlan, vectors: list[bytes]) -> bytes:
    """The whole answer, megabytes of it for many inputs."""
    tokens = sum(len(each.ids) for each in plan.inputs)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector).decode() if plan.base64 else array("f", vector).tolist(),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return to_json({"object": "list", "data": data, "model": plan.card.name, "usage": usage})


def _ranking(plan: RerankPlan, scores: list[float]) -> bytes:
    """The documents' scores, highest first; equal ones as they were sent."""
    tokens = sum(len(each.ids) for each in plan.pairs)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: plan.top_n]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": plan.documents[index]}} if plan.return_documents else {})
        for index in order
    ]
    return to_json(
        {
            "id": "rerank-" + secrets.token_hex(12),
            "object": "list",
            "model": plan.card.name,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
