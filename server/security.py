"""What stands before every route: who may ask at all, and how much they may send.

A browser is the attacker here. Any web page can post to 127.0.0.1, and with DNS rebinding it can do so under its own
name, so the Host header is checked against a list, never against Origin, and no CORS header is ever sent.
"""

import secrets
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.limits import Limits

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guard:
    """Pure ASGI middleware that refuses before anything is routed or read.

    Args:
        hosts: names that the Host header may have, on any port.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Iterable[str] = LOOPBACK_NAMES) -> None:
        self.app = app
        self.limits = limits
        self.hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The server runs without WebSockets and lifespan; a route for one must first learn these checks.
            return
        request_id = "req_" + secrets.token_hex(12)
        scope["request_id"] = request_id

        ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal.response(scope)(scope, receive, send_with_id)
        else:
            await self.app(scope, _bounded(receive, self.limits.body_bytes), send_with_id)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if len(scope["headers"]) > self.limits.headers:
            return ApiError(431, f"More than {self.limits.headers} headers were sent.")

        def values(name: bytes) -> list[str]:
            return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]

        host = values(b"host")
        if len(host) != 1 or _name(host[0]) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            return ApiError(403, f"The Host header names none of {names}.", code="host_not_allowed")
        origin = values(b"origin")
        own_page = origin in ([], [f"http://{host[0]}"])
        if not own_page or values(b"sec-fetch-site") not in ([], ["same-origin"], ["none"]):
            return ApiError(403, "Requests from other web pages are refused.", code="origin_not_allowed")
        if scope["method"] in ("POST", "PUT", "PATCH"):
            return self._body_refusal(values, bool(origin))
        return None

    def _body_refusal(self, values: Callable[[bytes], list[str]], from_page: bool) -> ApiError | None:
        # text/plain is what a page can post without asking first; curl without a type is no page.
        types = [value.partition(";")[0].strip().lower() for value in values(b"content-type")]
        if types != ["application/json"] and (types or from_page):
            return ApiError(415, "Send the body as Content-Type: application/json.")
        if any(value.lower() != "identity" for value in values(b"content-encoding")):
            return ApiError(415, "Compressed bodies are not taken; send it without Content-Encoding.")
        length = values(b"content-length")
        if length and int(length[0]) > self.limits.body_bytes:
            return _too_large(self.limits.body_bytes)
        return None


def _name(host: str) -> str:
    """The Host header without its port; empty where it is malformed."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or host.endswith("]"):
        return host.lower()
    return name if port.isascii() and port.isdigit() else ""


def _bounded(receive: Receive, limit: int) -> Receive:
    """`receive` that stops a body whose length was not told beforehand."""
    total = 0

    async def counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > limit:
            raise _too_large(limit)
        return message

    return counted


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.")
