"""One HTTP/1.1 connection with deadlines, which uvicorn has none of, and a bound on how many there are.

Each connection is in one phase at a time, and each phase but that of the answer itself has a time limit. `sweep` ends
those that are over it: looking at all of them now and then sees every way into a phase, where timers would have to be
set on each.
"""

import asyncio
import math
from collections.abc import Collection
from typing import Literal

import h11
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from server.errors import ApiError
from server.limits import Limits

Phase = Literal["headers", "answer", "unread", "refused", "idle", "closing"]
"""headers: the next request's are awaited or incomplete. answer: a request is being read and answered. unread: the
client does not take its answer. refused: the answer is out, and the client still sends a body that nobody wants.
idle: between two requests. closing: the last bytes are on their way."""


class Connection(H11Protocol):
    """uvicorn's connection, with the limits of the class that `connection_class` makes."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn's own
        super().connection_made(transport)
        self._phase: Phase = "headers"
        self._since = self.loop.time()
        if not self._find_room():
            self.app = _too_many

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, in the envelope."""
        self._refuse(ApiError(400, "This is not a valid HTTP/1.1 request."))

    def end_if_late(self) -> None:
        """End the connection if it is in its phase for too long."""
        self._look()
        seconds = self.loop.time() - self._since
        if seconds <= self._patience():
            return
        if self._phase == "headers" and self.conn.trailing_data[0]:
            self._refuse(ApiError(408, f"The headers were not complete after {self.limits.header_s:g} s."))
        else:  # and one that was silent gets no answer: it could take that for one to what it is just sending
            self.transport.abort()

    def end_if_asking(self) -> None:
        """End the connection if its request is not complete, so that there is no answer whose end could be told."""
        if self.cycle is not None and not self.cycle.response_started and self.cycle.more_body:
            self.transport.abort()

    def _patience(self) -> float:
        limits = self.limits
        return {
            "headers": limits.header_s,
            "unread": limits.unread_s,
            "refused": limits.body_s,
            "closing": limits.linger_s,
        }.get(self._phase, math.inf)

    def _look(self) -> None:
        """Note in which phase the connection is, and since when."""
        phase = self._now()
        if phase != self._phase:
            self._phase, self._since = phase, self.loop.time()

    def _now(self) -> Phase:
        if self.transport.is_closing():
            return "closing"
        if self.flow.write_paused:
            return "unread"
        if self.cycle is not None and not self.cycle.response_complete:
            return "answer"
        if self.conn.their_state is h11.SEND_BODY:
            return "refused"
        return "headers" if self.cycle is None or self.conn.trailing_data[0] else "idle"

    def _find_room(self) -> bool:
        """Where there are too many connections, end the one that has waited for longest without a request.

        So those that were opened to take all places do not keep anybody out. False where each has a request.
        """
        open_ = [one for one in ours(self.connections) if one is not self and not one.transport.is_closing()]
        if len(open_) < self.limits.connections:
            return True
        spare = [one for one in open_ if one._phase in ("headers", "idle", "refused")]
        if not spare:
            return False
        min(spare, key=lambda one: one._since).transport.abort()
        return True

    def _refuse(self, error: ApiError) -> None:
        """Answer without a request that could be answered, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = to_json(error.body)
            fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            reason = STATUS_PHRASES[error.status]
            head = h11.Response(status_code=error.status, headers=list(fields.items()), reason=reason)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # whoever still works on its answer is to stop
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def connection_class(limits: Limits) -> type[Connection]:
    """What uvicorn makes connections of. It takes a class and passes nothing of ours to it."""
    chosen = limits

    class Limited(Connection):
        limits = chosen

    return Limited


async def sweep(connections: Collection[object], limits: Limits) -> None:
    """End late connections, for as long as the server runs. `connections` are uvicorn's."""
    shortest = min(limits.header_s, limits.body_s, limits.unread_s, limits.linger_s)
    while True:
        await asyncio.sleep(min(1.0, shortest / 4))
        for connection in ours(connections):
            connection.end_if_late()


def ours(connections: Collection[object]) -> list[Connection]:
    """uvicorn's connections as what they are here."""
    return [connection for connection in connections if isinstance(connection, Connection)]


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(
        503,
        "As many connections are open as may be; try again in a moment.",
        code="too_many_connections",
        headers={"retry-after": "1", "connection": "close"},
    )
    await error.response(scope)(scope, receive, send)
