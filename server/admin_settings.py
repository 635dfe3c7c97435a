"""/v1/mtplx/settings: what can be changed while the server runs."""

from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from server.api.admin import AllSettings
from server.api.document import documented
from server.api.inputs import NULL
from server.backend import Backend
from server.errors import invalid
from server.facts import loaded
from server.jsonbody import parse
from server.settings import Settings, asks_for_drafts, describe


def routes(backend: Backend) -> APIRouter:
    """GET describes each setting; PATCH or POST with an object of names and values changes some, all or none."""
    router = APIRouter(prefix="/v1/mtplx")

    fields = {name: {"anyOf": [schema, NULL]} for name, schema in Settings.model_json_schema()["properties"].items()}
    change = documented(
        "Change settings; null takes one back to its default", AllSettings, body=Settings, fields=fields,
        example={"log_level": "warning"},
    )  # fmt: skip

    def described() -> Response:
        model = loaded(backend.engine)
        body = {"settings": describe(backend.settings.value, None if model is None else model.sampling)}
        return Response(to_json(body), media_type="application/json")

    @router.get("/settings", **documented("The settings", AllSettings))
    async def settings() -> Response:
        return described()

    @router.patch("/settings", **change)
    @router.post("/settings", **change)
    async def changed(request: Request) -> Response:
        changes = parse(await request.body())
        _refuse_drafts(backend, changes)
        backend.settings.set(changes)
        return described()

    return router


def _refuse_drafts(backend: Backend, changes: dict[str, Any]) -> None:
    model = loaded(backend.engine)
    if model is not None and asks_for_drafts(changes, model.mode):
        raise invalid("depth", f"the model {model.name!r} runs without drafts (mode ar); only auto or 0 can be set")
