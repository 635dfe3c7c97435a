"""The ASGI application: guards in front, then one router a subject."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.handle import EngineHandle
from server import errors, health, models, openai_chat
from server.generation import Generations
from server.limits import Limits
from server.security import Guard


class TidyPath:
    """Serves `//v1/models/` as `/v1/models`. A redirect would make some clients drop the body or the key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        await self.app({**scope, "path": path}, receive, send)


def create_app(engine: EngineHandle, generations: Generations, limits: Limits) -> FastAPI:
    """All endpoints over `engine`. `generations` are the running answers; whoever stops the server ends them."""
    # FastAPI's documentation pages load scripts from other sites, so they are off.
    app = FastAPI(title="mtplx-tui", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.include_router(health.routes(engine, limits))
    app.include_router(models.routes(engine))
    app.include_router(openai_chat.routes(engine, generations, limits))
    app.add_middleware(TidyPath)
    app.add_middleware(Guard, limits=limits)
    return app
