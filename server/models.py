"""GET /v1/models and /v1/models/{id}: one object that the OpenAI and the Anthropic clients both read. GET /api/tags has
the same models as Ollama lists its own, for programs that find a server that way and then speak OpenAI's API."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.responses import Response

from engine.handle import ModelInfo
from engine.retrieval.card import Card
from server.api.document import documented
from server.api.ollama import Tags
from server.api.openai import Model, Models
from server.backend import Backend
from server.errors import ApiError
from server.health import require_ready
from server.settings import Settings


def served(backend: Backend) -> ModelInfo:
    """The loaded model, with the sampling that requests begin from: its own, or what is set.

    Raises ApiError as `require_ready`.
    """
    model = require_ready(backend.engine)
    return replace(model, sampling=backend.settings.value.sampling(model.sampling))


def require_named(name: str | None, model: ModelInfo, settings: Settings) -> None:
    """Raise ApiError 404 unless `name` means the loaded model, or none was given. A name never loads anything."""
    if name is None or name == model.name or name in settings.aliases or settings.serve_any_name:
        return
    also = f" (or {', '.join(settings.aliases)})" if settings.aliases else ""
    raise ApiError(
        404,
        f"The model {_short(name)} is not here; this server runs {model.name!r}{also}.",
        param="model",
        code="model_not_found",
    )


def routes(backend: Backend) -> APIRouter:
    """The list and the single model. Ids may hold slashes, escaped or not."""
    router = APIRouter()
    since = int(time.time())

    @router.get("/v1/models", **documented("List the models", Models, errors=(503,)))
    @router.get("/models", include_in_schema=False)
    async def models() -> Response:
        model = require_ready(backend.engine)
        names = _names(model, backend.settings.value)
        data = [_describe(name, model.name, model.context, since) for name in names]
        data += [
            _describe(card.name, card.name, card.window, since) for card in _cards(backend) if card.name not in names
        ]
        body = {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": model.name,
            "last_id": data[-1]["id"],
        }
        return Response(to_json(body), media_type="application/json")

    @router.get("/v1/models/{name:path}", **documented("Describe a model", Model, errors=(404, 503)))
    @router.get("/models/{name:path}", include_in_schema=False)
    async def one(name: str) -> Response:
        model = require_ready(backend.engine)
        card = next((card for card in _cards(backend) if card.name == name), None)
        if card is not None and name != model.name:
            body = _describe(name, name, card.window, since)
        else:
            require_named(name, model, backend.settings.value)
            body = _describe(name, model.name, model.context, since)
        return Response(to_json(body), media_type="application/json")

    @router.get("/api/tags", **documented("List the models as Ollama does", Tags, errors=(503,)))
    async def tags() -> Response:
        model = require_ready(backend.engine)
        body = {"models": [_tag(name, model, since) for name in _names(model, backend.settings.value)]}
        return Response(to_json(body), media_type="application/json")

    return router


def _names(model: ModelInfo, settings: Settings) -> list[str]:
    return list(dict.fromkeys([model.name, *settings.aliases]))


def _cards(backend: Backend) -> list[Card]:
    """The models that make embeddings and rankings, once where they are the same."""
    retrieval = backend.retrieval
    cards = [] if retrieval is None else [retrieval.embedding, retrieval.rerank]
    return list({card.name: card for card in cards if card is not None}.values())


def _describe(name: str, root: str, context: int, since: int) -> dict[str, Any]:
    """A model, called `root` by itself, under one of its names."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": since,
        "created_at": _iso(since),
        "owned_by": "mtplx-tui",
        "display_name": name,
        "root": root,
        "lifecycle": "active",
        # The same number under the names that clients look for.
        "context_window": context,
        "context_length": context,
        "max_model_len": context,
        "max_input_tokens": context,
        "max_output_tokens": context,
        "max_tokens": context,
    }


def _tag(name: str, model: ModelInfo, since: int) -> dict[str, Any]:
    """A model under one of its names, in Ollama's form. It has no digest, which would be of a file of Ollama's."""
    return {
        "name": name,
        "model": name,
        "modified_at": _iso(since),
        "size": model.weight_bytes,
        "details": {
            "format": "safetensors",
            "family": model.family,
            "families": [model.family],
            "quantization_level": model.quantization or model.dtype,
        },
    }


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "…")
