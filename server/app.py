"""The ASGI application: guards in front, then one router a subject."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from server import errors, health, models, openai_chat
from server.backend import Backend
from server.security import Guard


class TidyPath:
    """Serves `//v1/models/` as `/v1/models`. A redirect would make some clients drop the body or the key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        await self.app({**scope, "path": path}, receive, send)


def create_app(backend: Backend) -> FastAPI:
    """All endpoints over a backend."""
    # FastAPI's documentation pages load scripts from other sites, so they are off.
    app = FastAPI(title="mtplx-tui", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.include_router(health.routes(backend.engine, backend.limits))
    app.include_router(models.routes(backend.engine))
    app.include_router(openai_chat.routes(backend))
    app.add_middleware(TidyPath)
    app.add_middleware(Guard, limits=backend.limits)
    return app
