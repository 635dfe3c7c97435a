"""Server-sent events: what the engine tells, written as it comes, always with an end that clients can see."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.generation import Batch, Generation, Generations

log = logging.getLogger("server")

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


class Encoder(Protocol):
    """How one API writes a generation. Each piece is a whole frame or several."""

    def begin(self) -> Iterator[bytes]:
        """Frames that come before the first token."""

    def step(self, batch: Batch) -> Iterator[bytes]:
        """Frames of what came since last time. Raises ApiError where a row failed."""

    def silence(self) -> Iterator[bytes]:
        """Frames that show a waiting client that the server lives."""

    def end(self) -> Iterator[bytes]:
        """Frames after the last row has finished."""

    def fail(self, error: ApiError) -> Iterator[bytes]:
        """Frames that end the stream with an error instead."""


def data(value: Mapping[str, Any]) -> bytes:
    """One frame with `value` as JSON."""
    return b"data: " + to_json(value) + b"\n\n"


class EventStream(Response):
    """Streams a submitted generation through an encoder, one write a step, straight to ASGI.

    Clients take a stream that just stops for a whole answer, or ask again without end; so it ends with the encoder's
    own end or its error frames, whatever happens here. A client that leaves cancels the generation.
    """

    def __init__(
        self, generations: Generations, generation: Generation, encoder: Encoder, headers: Mapping[str, str]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, **HEADERS})
        self._generations = generations
        self._generation = generation
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(frames: Iterator[bytes], more: bool = True) -> None:
            body = bytearray()
            try:
                for frame in frames:
                    body += frame
            finally:  # what came before a row's failure is the client's all the same
                await send({"type": "http.response.body", "body": bytes(body), "more_body": more})

        with self._generations.running(self._generation):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await write(self._encoder.begin())
                async for batch in self._generation.batches():
                    await write(self._encoder.step(batch) if batch else self._encoder.silence())
                end = self._encoder.end()
            except ApiError as error:
                end = self._encoder.fail(error)
            except Exception as error:
                log.error("a stream failed", exc_info=error)
                end = self._encoder.fail(ApiError(500, "The server failed on this request; its log has the details."))
            await write(end, more=False)
