"""GET /v1/mtplx/events: what the engine tells, as server-sent events, for screens on other machines."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.events import FinishEvent, PrefillEvent, StepEvent, TokenEvent
from server.api import streams
from server.api.document import documented
from server.backend import Backend
from server.event_json import Frame, UnreadableError, encode
from server.facts import Hello, Lost, loaded
from server.keys import CALLER
from server.stream import HEADERS


def routes(backend: Backend) -> APIRouter:
    """The stream: a Hello, then every event of every request, with a Lost where the reader was too slow for some."""
    router = APIRouter(prefix="/v1/mtplx")

    @router.get("/events", **documented("What the engine tells", events=streams.frame(streams.EngineFrame)))
    async def events() -> Response:
        return Events(backend)

    return router


class Events(Response):
    """One reader's stream. It ends when the reader leaves, or when the server stops."""

    def __init__(self, backend: Backend) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._backend = backend
        self._caller = CALLER.get()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        hub = self._backend.telemetry.hub
        watcher = hub.join()  # before the Hello is made, so that nothing falls between it and the events
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await write(_lines([self._hello()]))
            async for batch in watcher.batches(lambda: self._backend.settings.value.keep_alive_s):
                await write(_lines(self._seen(batch)) if batch else b": waiting\n\n")
            await write(b"", more=False)
        finally:
            hub.leave(watcher)

    def _seen(self, batch: Iterable[Frame]) -> Iterator[Frame]:
        """What this reader may see: where the server has several keys, only its own requests' words."""
        if not self._caller.scope:
            yield from batch
            return
        for frame in batch:
            entry = self._backend.telemetry.journal.find(getattr(frame, "request_id", ""))
            yield frame if entry is not None and not entry.hidden_from(self._caller) else without_words(frame)

    def _hello(self) -> Hello:
        engine = self._backend.engine
        return Hello(
            now=time.monotonic(),
            time=time.time(),
            server=self._backend.facts,
            state=engine.state,
            model=loaded(engine),
            requests=self._backend.telemetry.journal.facts(running_only=True),
            cache=engine.cache,
        )


def without_words(frame: Frame) -> Frame:
    """A frame without anything that was said; how many tokens there were stays."""
    match frame:
        case TokenEvent():
            return replace(frame, ids=(0,) * len(frame.ids), spans=(), logprobs=())
        case StepEvent():
            return replace(frame, tokens=("",) * len(frame.tokens), refused=None if frame.refused is None else "")
        case PrefillEvent():
            return replace(frame, logprobs=())
        case FinishEvent():
            return replace(frame, stop=None)
        case _:
            return frame


def _lines(frames: Iterable[Frame]) -> bytes:
    body = bytearray()
    for frame in frames:
        try:
            text = encode(frame)
        except UnreadableError:  # an error's words held what no JSON can hold
            text = encode(Lost(1))
        body += b"data: " + text + b"\n\n"
    return bytes(body)
