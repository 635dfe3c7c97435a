"""What comes from the client of one request: its body, bounded in size and in time, and the news that it has left.

The server knows at once that a client is gone; an endpoint that renders a prompt or waits for its turn does not, and
asking `is_disconnected` now and then sees it late or never. So it is told by being cancelled.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive

from server.errors import ApiError
from server.limits import Limits

GONE: Message = {"type": "http.disconnect"}


class Bodies:
    """How many bytes of bodies are held by all the requests that are being answered."""

    def __init__(self) -> None:
        self.held = 0


class Intake:
    """One request's messages on their way to its endpoint. `watch` must run while the endpoint does.

    Attributes:
        gone: whether the client has left.
    """

    def __init__(self, receive: Receive, limits: Limits, bodies: Bodies) -> None:
        self._receive = receive
        self._limits = limits
        self._bodies = bodies
        self._held = 0
        self._ready: asyncio.Queue[Message | ApiError] = asyncio.Queue(1)  # what is not read here is not read there
        self.gone = False

    async def receive(self) -> Message:
        """The endpoint's `receive`. Raises ApiError where the body is too large or too slow."""
        message = await self._ready.get()
        if isinstance(message, ApiError):
            raise message
        if message is GONE:
            self._ready.put_nowait(message)  # for whoever asks again
        return message

    async def watch(self, leave: Callable[[], object]) -> None:
        """Hand on what comes; call `leave` when the client has gone."""
        try:
            await self._read()
        except ApiError as error:
            await self._ready.put(error)
            return
        while not self.gone:
            self.gone = (await self._receive())["type"] == GONE["type"]
        leave()
        await self._ready.put(GONE)

    def close(self) -> None:
        """The request is answered."""
        self._bodies.held -= self._held

    async def _read(self) -> None:
        """The body, until it has ended or the client has gone."""
        loop, limits, more = asyncio.get_running_loop(), self._limits, True
        begun = loop.time()
        while more:
            slowest = begun + limits.body_s + self._held / limits.body_rate
            try:
                async with asyncio.timeout_at(min(loop.time() + limits.body_s, slowest)):
                    message = await self._receive()
            except TimeoutError:
                raise _too_slow(limits) from None
            if message["type"] == GONE["type"]:
                self.gone = True
                return
            size = len(message.get("body", b""))
            self._held += size
            self._bodies.held += size
            if self._held > limits.body_bytes:
                raise too_large(limits)
            if self._bodies.held > limits.bodies_bytes:
                raise _no_room()
            more = message.get("more_body", False)
            await self._ready.put(message)


def too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"The body is larger than {limits.body_bytes} bytes.")


def _too_slow(limits: Limits) -> ApiError:
    return ApiError(
        408,
        f"The body came too slowly: no pause may last {limits.body_s:g} s, nor may it come at less than "
        f"{limits.body_rate:g} bytes a second.",
        headers={"connection": "close"},
    )


def _no_room() -> ApiError:
    return ApiError(
        503,
        "The bodies of all requests together are too large; try again in a moment.",
        code="server_busy",
        headers={"retry-after": "1"},
    )
