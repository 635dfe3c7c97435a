"""Is there an engine that answers: GET /health and /ready, and the gate that other endpoints pass first."""

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.responses import Response

from engine.errors import EngineError
from engine.handle import EngineHandle, ModelInfo
from server.api.admin import Health, Readiness, Root
from server.api.document import documented
from server.api.errors import AnyError
from server.errors import ApiError
from server.limits import Limits

if TYPE_CHECKING:
    from server.backend import Backend

LOADING_RETRY_S = "2"


def require_ready(engine: EngineHandle) -> ModelInfo:
    """The loaded model. Raises ApiError 503 while it loads, and where it failed with the reason."""
    state = engine.state
    if state == "ready":
        return engine.model
    if state == "loading":
        raise ApiError(
            503,
            "The model is still loading; try again in a moment.",
            code="model_loading",
            headers={"retry-after": LOADING_RETRY_S},
        )
    if state == "closed":
        raise ApiError(503, "The engine has been closed.", code="engine_closed")
    raise ApiError(503, f"The engine has failed: {failure_reason(engine)}", code="engine_failed")


def failure_reason(engine: EngineHandle) -> str:
    """Why a failed engine failed, in words for a user."""
    try:
        model = engine.model
    except EngineError as error:
        return str(error)
    return f"{model.name} was loaded and then stopped running."


def stalled(engine: EngineHandle, limits: Limits) -> bool:
    """True where the engine thread has not gone round its loop for longer than it ever should."""
    return engine.heartbeat_age() > limits.stalled_s


def routes(backend: "Backend") -> APIRouter:
    """GET /health and /ready, which name no path, model, key or prompt, and the root.

    /health is whether the server is worth keeping: 200 while its engine works or loads. A stalled engine can not be
    ended within this process, so 503 there means that somebody has to start the program again. /ready is whether it
    takes requests now.
    """
    router = APIRouter()
    engine, limits = backend.engine, backend.limits

    def state() -> str:
        if engine.state == "ready":
            return "stalled" if stalled(engine, limits) else "ok"
        return engine.state

    @router.api_route(
        "/health", methods=["GET", "HEAD"], **documented("Is it worth keeping", Health, others={503: Health | AnyError})
    )
    async def health() -> Response:
        now = state()
        body = {"status": now, "heartbeat_age_s": round(engine.heartbeat_age(), 3)}
        return Response(to_json(body), 200 if now in ("ok", "loading") else 503, media_type="application/json")

    @router.api_route(
        "/ready",
        methods=["GET", "HEAD"],
        **documented("Does it take requests now", Readiness, others={503: Readiness | AnyError}),
    )
    async def ready() -> Response:
        now = "closing" if backend.generations.closing else state()
        headers = {"retry-after": LOADING_RETRY_S} if now == "loading" else None
        return Response(to_json({"status": now}), 200 if now == "ok" else 503, headers, "application/json")

    @router.api_route("/", methods=["GET", "HEAD"], **documented("What is here", Root))
    async def root() -> Response:
        return Response(to_json({"name": "mtplx-tui", "api": "/v1"}), 200, media_type="application/json")

    return router
