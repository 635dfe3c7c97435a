"""The OpenAPI document: what the routes say of themselves, in the form that FastAPI makes of it.

Endpoints read their bodies themselves, so that a fault is told in the envelope and with the path that clients of each
API expect. So each route names the models of its body and its answers here, and FastAPI puts them together.
"""

import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from server.api.errors import AnthropicError, Error
from server.headers import IGNORED_FIELDS

SCHEMAS = "#/components/schemas/"
JSON = "application/json"
ALWAYS = (401, 403, 408, 413, 431, 500, 503, 505)
WITH_BODY = (400, 415)

STATUSES = {
    400: "The request can not be run; `param` is the path of the field at fault.",
    401: "This server asks for a key, and none of its own came.",
    403: "The Host or Origin header, or the key, is of somebody who may not do this.",
    404: "There is no model, response or request of that name.",
    408: "The body came too slowly.",
    409: "There is a request with this id already.",
    410: "The request ended too long ago.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "As many requests wait as may; try again after `Retry-After`.",
    431: "Too many headers.",
    500: "The engine or the server failed.",
    503: "The model loads, the server stops, or there is no memory for this.",
    505: "Not HTTP/1.1.",
    529: "As many requests wait as may, or the model loads; try again after `Retry-After`.",
}

# References, not models: of a model FastAPI makes a field for each status of each route, a third of a second in all.
_ANTHROPIC = {"$ref": f"{SCHEMAS}{AnthropicError.__name__}"}
_EITHER = {"anyOf": [{"$ref": f"{SCHEMAS}{Error.__name__}"}, _ANTHROPIC]}


def documented(
    summary: str,
    answer: Any = None,
    *,
    status: int = 200,
    errors: Iterable[int] = (),
    others: Mapping[int, Any] | None = None,
    body: type[BaseModel] | None = None,
    fields: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    events: Mapping[str, Any] | None = None,
    text: str | None = None,
    query: Mapping[str, Any] | None = None,
    anthropic: bool = False,
) -> dict[str, Any]:
    """Arguments for a route's decorator.

    Args:
        answer: what the JSON of the answer is: a model, a dataclass or a type. None where it is no JSON.
        status: of that answer. errors: further statuses that this route may answer with.
        others: what comes with some statuses in place of an envelope.
        body: the fields of the body; `fields` says more of some of them than their types do, as JSON schemas.
        example: a body. events: one event of a stream of this route, as a JSON schema.
        text: the media type of an answer that is text.
        query: parameters of the query with their JSON schemas.
        anthropic: whether errors are always in Anthropic's envelope.
    """
    statuses = {*ALWAYS, *(WITH_BODY if body is not None else ()), *errors}
    error = {JSON: {"schema": _ANTHROPIC if anthropic else _EITHER}}
    responses: dict[int | str, Any] = {code: {"description": STATUSES[code], "content": error} for code in statuses}
    responses |= {code: {"model": other, "description": STATUSES[code]} for code, other in (others or {}).items()}
    good: dict[str, Any] = {"description": "The answer."}
    if answer is not None:
        good["model"] = answer
    if events is not None:
        good["content"] = {"text/event-stream": {"itemSchema": dict(events)}}
    if text is not None:
        good["content"] = {text: {"schema": {"type": "string"}}}
    if body is not None:
        good["headers"] = {
            IGNORED_FIELDS: {"description": "Fields that changed nothing.", "schema": {"type": "string"}}
        }
    responses[status] = good
    extra: dict[str, Any] = {}
    if body is not None:
        content: dict[str, Any] = {"schema": _body(body, fields or {})}
        if example is not None:
            content["example"] = dict(example)
        extra["requestBody"] = {"required": True, "content": {JSON: content}}
    if query:
        extra["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in query.items()
        ]
    return {"summary": summary, "status_code": status, "responses": responses, "openapi_extra": extra}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of all routes. Takes a good part of a second, so it belongs off the event loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FastAPI's, of ids that routes with two methods share; they are set below
        made = get_openapi(
            title="mtplx-tui",
            version=app.version,
            routes=app.routes,
            description="OpenAI's and Anthropic's APIs over a model on this machine. Errors of every route are in "
            "Anthropic's envelope where the header `anthropic-version` is sent.",
            separate_input_output_schemas=False,
        )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for path, operations in made["paths"].items():
        operations.pop("head", None)  # what GET has, without its body
        for method, operation in operations.items():
            operation["operationId"] = f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}"
            operation["responses"].pop("422", None)  # FastAPI's own check of arguments, of which there are none
            for response in operation["responses"].values():
                content = response.get("content", {})
                if content.get(JSON) == {"schema": {}}:
                    del content[JSON]
    _lift(made["paths"], schemas)
    for envelope in (Error, AnthropicError):
        schema = envelope.model_json_schema(ref_template=SCHEMAS + "{model}")
        schemas |= schema.pop("$defs") | {envelope.__name__: schema}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    made["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    made["security"] = [{}, {"bearer": []}, {"key": []}]
    return made


def _body(model: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{model.__name__}."  # the models of several APIs have names in common
    schema = deepcopy(_schema(model))
    if "$defs" in schema:
        schema["$defs"] = {prefix + name: definition for name, definition in schema["$defs"].items()}
    for name, more in fields.items():
        schema["properties"][name] = dict(more)
    return schema


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template=f"{SCHEMAS}{model.__name__}.{{model}}")


def _lift(part: Any, schemas: dict[str, Any]) -> None:
    """Move the definitions that stand within a body's schema to where the document's references look for them."""
    if isinstance(part, dict):
        for name, schema in part.pop("$defs", {}).items():
            schemas[name] = schema
        for inner in part.values():
            _lift(inner, schemas)
    elif isinstance(part, list):
        for inner in part:
            _lift(inner, schemas)
