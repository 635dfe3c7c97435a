"""The ASGI application: guards in front, then one router a subject."""

import asyncio
from functools import cache
from importlib.metadata import version

from fastapi import FastAPI
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server import (
    admin,
    anthropic_messages,
    errors,
    health,
    models,
    openai_chat,
    openai_completions,
    openai_responses,
    retrieval,
)
from server.access import Access
from server.api.document import document
from server.backend import Backend
from server.keys import Keys
from server.security import LOOPBACK_NAMES, Guard


class TidyPath:
    """Serves `//v1/models/` as `/v1/models`. A redirect would make some clients drop the body or the key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        scope["path"] = path
        await self.app(scope, receive, send)


def create_app(backend: Backend, hosts: frozenset[str] = LOOPBACK_NAMES, keys: Keys | None = None) -> FastAPI:
    """All endpoints over a backend, for requests to one of `hosts` with one of `keys`."""
    # FastAPI's documentation pages load scripts from other sites, so they are off.
    app = FastAPI(version=version("mtplx-tui"), docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.include_router(health.routes(backend))
    app.include_router(models.routes(backend))
    app.include_router(openai_chat.routes(backend))
    app.include_router(anthropic_messages.routes(backend))
    app.include_router(openai_completions.routes(backend))
    app.include_router(openai_responses.routes(backend))
    app.include_router(retrieval.routes(backend))
    app.include_router(admin.routes(backend))
    document_once = cache(lambda: to_json(document(app)))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await asyncio.to_thread(document_once), media_type="application/json")

    app.add_middleware(TidyPath)
    app.add_middleware(Guard, limits=backend.limits, hosts=hosts, keys=keys)
    app.add_middleware(Access, metrics=backend.telemetry.metrics)
    return app
