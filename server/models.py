"""GET /v1/models and /v1/models/{id}: one object that the OpenAI and the Anthropic clients both read."""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.responses import Response

from engine.handle import EngineHandle, ModelInfo
from server.errors import ApiError
from server.health import require_ready


def require_named(name: str | None, model: ModelInfo) -> None:
    """Raise ApiError 404 unless `name` is the loaded model's, or none was given. A name never loads anything."""
    if name is not None and name != model.name:
        raise ApiError(
            404,
            f"The model {_short(name)} is not here; this server runs {model.name!r}.",
            param="model",
            code="model_not_found",
        )


def routes(engine: EngineHandle) -> APIRouter:
    """The list and the single model. Ids may hold slashes, escaped or not."""
    router = APIRouter()
    since = int(time.time())

    @router.get("/v1/models")
    @router.get("/models", include_in_schema=False)
    async def models() -> Response:
        model = require_ready(engine)
        body = {
            "object": "list",
            "data": [_describe(model, since)],
            "has_more": False,
            "first_id": model.name,
            "last_id": model.name,
        }
        return Response(to_json(body), media_type="application/json")

    @router.get("/v1/models/{name:path}")
    @router.get("/models/{name:path}", include_in_schema=False)
    async def one(name: str) -> Response:
        model = require_ready(engine)
        require_named(name, model)
        return Response(to_json(_describe(model, since)), media_type="application/json")

    return router


def _describe(model: ModelInfo, since: int) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "type": "model",
        "created": since,
        "created_at": datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z"),
        "owned_by": "mtplx-tui",
        "display_name": model.name,
        # The same number under the three names that clients look for.
        "context_window": model.context,
        "context_length": model.context,
        "max_model_len": model.context,
        "max_output_tokens": model.context,
    }


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "…")
