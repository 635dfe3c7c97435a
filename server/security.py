"""What stands before every route: who may ask at all, and how much they may send.

A browser is the first attacker. Any web page can post to 127.0.0.1, and with DNS rebinding it can do so under its own
name, so the Host header is checked against a list, never against Origin, and no CORS header is ever sent. Who comes
from another machine needs a key.
"""

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.intake import Bodies, Intake, too_large
from server.keys import CALLER, Caller, Keys
from server.limits import Limits

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

OPEN = frozenset({b"/", b"/health", b"/ready"})
"""Paths that say whether there is a server that works, and nothing else: probes have no key. All others need one."""


class Guard:
    """Pure ASGI middleware that refuses before anything is routed or read, and ends what nobody waits for any more.

    Args:
        hosts: names that the Host header may have, on any port; the address that the client came in by is one too,
            since a page can not have that for its name.
        keys: one of these must be sent, where there are any.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, hosts: Iterable[str] = LOOPBACK_NAMES, keys: Keys | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.hosts = frozenset(hosts)
        self.keys = keys or Keys()
        self._bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The server runs without WebSockets and lifespan; a route for one must first learn these checks.
            return
        request_id = scope["request_id"] = "req_" + secrets.token_hex(12)
        ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        try:
            CALLER.set(self._admit(scope))
        except ApiError as refusal:
            await refusal.response(scope)(scope, receive, send_with_id)
        else:
            await self._serve(scope, receive, send_with_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint, and cancel it where the client leaves before it has its answer."""
        begun = complete = False

        async def watched_send(message: Message) -> None:
            nonlocal begun, complete
            begun = True
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        intake = Intake(receive, self.limits, self._bodies)
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(intake.watch(lambda: complete or task.cancel()))
        try:
            await self.app(scope, intake.receive, watched_send)
        except asyncio.CancelledError:
            if not intake.gone:  # it is the server that ends
                raise
            task.uncancel()
            if not begun:  # nobody reads it, but it is counted
                await Response(status_code=499)(scope, receive, send)
        finally:
            watcher.cancel()
            intake.close()

    def _admit(self, scope: Scope) -> Caller:
        """Who asks. Raises ApiError where they may not ask at all, or not like this."""
        if len(scope["headers"]) > self.limits.headers:
            raise ApiError(431, f"More than {self.limits.headers} headers were sent.")
        if scope["http_version"] not in ("1.0", "1.1"):
            raise ApiError(505, "This server speaks HTTP/1.1.", headers={"connection": "close"})

        def values(name: bytes) -> list[str]:
            return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]

        self._check_origin(scope, values)
        caller = self._caller(scope)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            self._check_body(values)
        return caller

    def _check_origin(self, scope: Scope, values: Callable[[bytes], list[str]]) -> None:
        host = values(b"host")
        if len(host) != 1 or _name(host[0]) not in self.hosts | _own_address(scope):
            names = ", ".join(sorted(self.hosts))
            raise ApiError(
                403, f"The Host header names none of {names}; --allow-host adds names.", code="host_not_allowed"
            )
        own_page = values(b"origin") in ([], [f"http://{host[0]}"])
        if not own_page or values(b"sec-fetch-site") not in ([], ["same-origin"], ["none"]):
            raise ApiError(403, "Requests from other web pages are refused.", code="origin_not_allowed")

    def _caller(self, scope: Scope) -> Caller:
        # The path as it was sent: no two ways of reading it can then disagree about which one it is.
        if not self.keys or (scope["method"] in ("GET", "HEAD") and scope["raw_path"] in OPEN):
            return Caller()
        given = list(_given_keys(scope))
        caller = self.keys.caller(given)
        if caller is None:
            what = "The key is not one of this server's" if given else "This server asks for a key"
            raise ApiError(
                401,
                f"{what}; send one as Authorization: Bearer KEY, or as x-api-key.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return caller

    def _check_body(self, values: Callable[[bytes], list[str]]) -> None:
        # text/plain is what a page can post without asking first; curl without a type is no page.
        types = [value.partition(";")[0].strip().lower() for value in values(b"content-type")]
        if types != ["application/json"] and (types or values(b"origin")):
            raise ApiError(415, "Send the body as Content-Type: application/json.")
        if any(value.lower() != "identity" for value in values(b"content-encoding")):
            raise ApiError(415, "Compressed bodies are not taken; send it without Content-Encoding.")
        length = values(b"content-length")
        if length and values(b"transfer-encoding"):
            # A proxy in front may go by the other one, and then sees other requests than we do.
            raise ApiError(
                400, "Content-Length and Transfer-Encoding contradict each other.", headers={"connection": "close"}
            )
        if length and int(length[0]) > self.limits.body_bytes:
            raise too_large(self.limits)


def own_names(host: str) -> frozenset[str]:
    """What other machines call this one, which listens at `host`; addresses need not be among them."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    names = {name, short, f"{short}.local"}
    try:
        ipaddress.ip_address(host)
    except ValueError:
        names.add(host.lower())
    return frozenset(names) - {""}


def _given_keys(scope: Scope) -> Iterable[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()


def _own_address(scope: Scope) -> frozenset[str]:
    """The address that the client has connected to, as a Host header has it."""
    with suppress(ValueError, TypeError):
        address = ipaddress.ip_address(scope["server"][0].partition("%")[0])
        return frozenset({f"[{address}]" if address.version == 6 else str(address)})
    return frozenset()


def _name(host: str) -> str:
    """The Host header without its port; empty where it is malformed."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or host.endswith("]"):
        return host.lower()
    return name if port.isascii() and port.isdigit() else ""
