"""Every answer counted, and with the log at info a line for each: the first thing a request passes, refused or not."""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.headers import IGNORED_FIELDS
from server.keys import CALLER
from server.metrics import Metrics

log = logging.getLogger("server")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Access:
    """ASGI middleware that counts answers by route, method and status, and the fields that they name as ignored.

    Neither figures nor log say anything that a client could choose: no path, no header, only the route it came to.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        start: Message = {"status": 500}

        async def noted(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            handler = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.answered(handler, method, start["status"], _ignored(start))
            label = CALLER.get().label  # which the guards have set, within this same task
            key = f", key {label}" if label else ""
            log.info("%s %s %d in %.3f s%s", method, handler, start["status"], time.monotonic() - begun, key)


def _ignored(start: Message) -> list[str]:
    """The names in the header that lists fields which changed nothing."""
    for name, value in start.get("headers", ()):
        if name.lower() == IGNORED_FIELDS.encode():
            return [field.strip() for field in value.decode("latin-1").split(",")]
    return []
