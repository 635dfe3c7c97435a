"""/v1/mtplx/cache: what is kept of earlier prompts, how often it was of use, and how to be rid of it."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.responses import Response

from engine.caches.blobs import Blobs
from server.api.admin import Cache
from server.api.document import documented
from server.backend import Backend


def routes(backend: Backend) -> APIRouter:
    """GET tells, DELETE forgets everything, in memory and on disk."""
    router = APIRouter(prefix="/v1/mtplx")

    @router.get("/cache", **documented("What is kept of earlier prompts", Cache))
    async def cache() -> Response:
        return await _answer(backend, 200)

    @router.delete("/cache", **documented("Forget it; the answer is what there was", Cache, status=202))
    async def clear() -> Response:
        answer = await _answer(backend, 202)  # what there was: it goes when the engine comes to it
        backend.engine.clear_cache()
        return answer

    return router


async def _answer(backend: Backend, status: int) -> Response:
    held, metrics = backend.engine.cache, backend.telemetry.metrics
    body = {
        "memory": None
        if held is None
        else {
            "stretches": held.stretches,
            "tokens": held.tokens,
            "bytes": held.nbytes,
            "limit_bytes": held.limit,
            "evicted": held.evicted,
        },
        "disk": None if held is None or held.folder is None else await asyncio.to_thread(_disk, held.folder),
        "requests": metrics.lookups,
        "tokens": metrics.cached_tokens,
        "misses": metrics.misses,
    }
    return Response(to_json(body), status, media_type="application/json")


def _disk(folder: str) -> dict[str, Any]:
    """What is in the folder, of all models; `error` where it can not be read."""
    told: dict[str, Any] = {"folder": folder, "entries": None, "bytes": None, "models": None, "error": None}
    try:
        blobs = Blobs(Path(folder))
        try:
            entries = blobs.entries()
        finally:
            blobs.close()
    except (OSError, sqlite3.Error) as error:
        return told | {"error": str(error)}
    models: dict[str, dict[str, int]] = {}
    for entry in entries:
        model = models.setdefault(entry.model, {"entries": 0, "bytes": 0})
        model["entries"] += 1
        model["bytes"] += entry.nbytes
    size = sum(entry.nbytes for entry in entries)
    return told | {"entries": len(entries), "bytes": size, "models": models}
