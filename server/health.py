"""Is there an engine that answers: GET /health, and the gate that other endpoints pass first."""

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.responses import Response

from engine.errors import EngineError
from engine.handle import EngineHandle, ModelInfo
from server.errors import ApiError
from server.limits import Limits


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
            headers={"retry-after": "2"},
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


def routes(engine: EngineHandle, limits: Limits) -> APIRouter:
    """GET /health: 200 only while the engine is loaded and its loop turns. It names no path and no prompt."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        state: str = engine.state
        if state == "ready":
            state = "stalled" if stalled(engine, limits) else "ok"
        body = {"status": state, "heartbeat_age_s": round(engine.heartbeat_age(), 3)}
        headers = {"retry-after": "2"} if state == "loading" else None
        return Response(to_json(body), 200 if state == "ok" else 503, headers, "application/json")

    @router.api_route("/", methods=["GET", "HEAD"])
    async def root() -> Response:
        return Response(to_json({"name": "mtplx-tui", "api": "/v1"}), 200, media_type="application/json")

    return router
