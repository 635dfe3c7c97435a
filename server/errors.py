"""Every refusal and failure in the envelope of the API that was asked.

OpenAI's is `{"error": {"message", "type", "param", "code"}}`, Anthropic's
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Scope

from engine.errors import (
    BadRequestError,
    ContextOverflowError,
    EngineClosedError,
    EngineError,
    OutOfMemoryError,
    QueueFullError,
)
from server.logs import log, shown

if TYPE_CHECKING:
    from fastapi import FastAPI  # what only tells a settings file's faults does not pay for it

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {**_TYPES, 500: "api_error", 503: "overloaded_error", 529: "overloaded_error"}

BUSY_RETRY_S = "1"  # honoured by every coding agent tried; a place is free as soon as any one answer ends

_ROUTES = "GET /v1/models, POST /v1/chat/completions, POST /v1/messages and GET /health"


class ApiError(Exception):
    """A refusal or failure that the client is told about.

    Attributes:
        status: HTTP status. param: JSON path of the field at fault. code: short name that programs test for.
        headers: further response headers, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's envelope."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_body(self, request_id: str) -> dict[str, Any]:
        """Anthropic's envelope."""
        status = self.anthropic_status
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        if self.headers.get("x-should-retry") == "false" and kind == "overloaded_error":
            kind = "api_error"  # the word alone makes its clients try again, and within a stream there is no header
        error = {"type": kind, "message": self.anthropic_message}
        return {"type": "error", "error": error, "request_id": request_id}

    @property
    def anthropic_message(self) -> str:
        return self.message

    @property
    def anthropic_status(self) -> int:
        """Anthropic's clients know a busy server by 529."""
        return 529 if self.code in ("rate_limit_exceeded", "model_loading") else self.status

    def response(self, scope: Scope | None = None) -> Response:
        """The answer to the request of this scope, in its API's envelope; OpenAI's where there is none."""
        if scope is not None and asks_anthropic(scope):
            body, status = self.anthropic_body(scope.get("request_id", "")), self.anthropic_status
        else:
            body, status = self.body, self.status
        return Response(to_json(body), status, self.headers, "application/json")


def asks_anthropic(scope: Scope) -> bool:
    """Whether a request speaks Anthropic's API: by its path, or by the header that its clients always send."""
    if scope["path"].startswith("/v1/messages"):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def invalid(path: str, message: str) -> ApiError:
    """A 400 that names the field at `path` (as `messages[0].content`) and says what is wrong with it."""
    return ApiError(400, f"{path}: {message}", param=path)


class TooLongError(ApiError):
    """The 400 that clients know a full context by, in each API's own words: some read the numbers out of them."""

    def __init__(self, context: int, amount: int, unit: str) -> None:
        super().__init__(
            400,
            f"This model's maximum context length is {context} tokens. "
            f"However, your messages resulted in {amount} {unit}.",
            param="messages",
            code="context_length_exceeded",
        )
        self.context = context
        self.amount = amount
        self.unit = unit

    @property
    def anthropic_message(self) -> str:
        # Claude Code reads both numbers out of these very words and does not try again.
        if self.unit == "tokens":
            return f"prompt is too long: {self.amount} tokens > {self.context} maximum"
        return f"prompt is too long: {self.message}"


def context_overflow(context: int, amount: int, unit: str = "tokens") -> TooLongError:
    """A prompt of `amount` units where `context` tokens fit."""
    return TooLongError(context, amount, unit)


def from_engine(error: EngineError) -> ApiError:
    """What the client is told of an error that the engine raised."""
    if isinstance(error, ContextOverflowError):
        return context_overflow(error.context, error.prompt_tokens)
    if isinstance(error, BadRequestError):
        return ApiError(400, str(error), param="response_format" if error.param == "grammar" else error.param)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="rate_limit_exceeded", headers={"retry-after": BUSY_RETRY_S})
    if isinstance(error, OutOfMemoryError):
        # It would not fit another time either, and clients try a 503 again by themselves.
        return ApiError(503, str(error), code="insufficient_memory", headers={"x-should-retry": "false"})
    if isinstance(error, EngineClosedError):
        return ApiError(503, str(error), code="engine_closed")
    return ApiError(500, str(error), code="engine_error")


def allowed(app: "FastAPI", path: str) -> str:
    """The methods that a path takes, of all its routes; Starlette's own Allow header has those of the first one."""
    from fastapi.routing import iter_route_contexts

    methods: set[str] = set()
    for route in iter_route_contexts(app.routes):
        if route.path is not None and compile_path(route.path)[0].match(path):
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


def install(app: "FastAPI") -> None:
    """Let every error of `app`, its own and the framework's, leave in the envelope."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response(request.scope)

    async def engine_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return from_engine(error).response(request.scope)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {shown(request.scope['path'])}"
        message = str(error.detail)
        if error.status_code == 404:
            message = f"There is no {where} here. This server answers {_ROUTES}."
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = allowed(app, request.scope["path"])
            message = f"There is no {where} here; that path takes {headers['Allow']}."
        return ApiError(error.status_code, message, headers=headers).response(request.scope)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, shown(request.scope["path"]), exc_info=error)
        return ApiError(500, "The server failed on this request; its log has the details.").response(request.scope)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(EngineError, engine_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unexpected)
