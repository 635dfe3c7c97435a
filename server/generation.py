"""One HTTP request's rows in the engine: submit them, carry their events to the event loop, end them early."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from engine.events import Event, FinishEvent, PrefillEvent, TokenEvent, TokenLogprob
from engine.handle import EngineHandle
from engine.request import Request
from server.errors import BUSY_RETRY_S, ApiError
from server.health import stalled
from server.keys import CALLER, Caller
from server.limits import Limits
from server.settings import LiveSettings
from server.telemetry import Telemetry

Batch = list[tuple[int, TokenEvent | FinishEvent]]
"""Events with the index of the row that they belong to, in the order in which they were made."""

PACE_S = 0.04
"""A stream that is faster is handed on 25 times a second: nobody reads faster, and each time costs system calls on
this thread. The first tokens and the end do not wait, nor does what comes at a slower pace."""

QUEUE_RETRY_S = "30"
"""For those that waited in vain: many others are before them, so coming back at once would not help."""


class Generations:
    """All generations that run, so that a shutdown can end them."""

    def __init__(self, engine: EngineHandle, limits: Limits, settings: LiveSettings, telemetry: Telemetry) -> None:
        self._engine = engine
        self._limits = limits
        self._settings = settings
        self._telemetry = telemetry
        self._running: set[Generation] = set()
        self._closing: ApiError | None = None

    def submit(self, requests: Sequence[Request]) -> "Generation":
        """Queue `requests` as rows 0, 1, ... of one generation; `running` must follow.

        Must be called on the event loop. Raises what the engine's `submit` raises, or the ApiError of `abort_all`;
        then none of them runs.
        """
        if self._closing is not None:
            raise self._closing
        caller = CALLER.get()
        requests = self._settings.value.drafted(requests, self._engine.model.mode)
        if caller.scope:
            self._check_share(caller, len(requests))
            requests = [replace(request, cache_scope=caller.scope) for request in requests]
        generation = Generation(self._engine, self._limits, self._settings, requests, caller)
        self._running.add(generation)
        try:
            generation.submit()
        except BaseException:
            self._end(generation)
            raise
        self._telemetry.journal.submitted(requests, caller)
        return generation

    @property
    def closing(self) -> bool:
        """Whether no more requests are taken."""
        return self._closing is not None

    @contextmanager
    def running(self, generation: "Generation") -> Iterator[None]:
        """What still runs on the way out is cancelled: Guard cancels the endpoint of a client that leaves."""
        try:
            yield
        finally:
            self._end(generation)

    def abort_all(self, error: ApiError) -> None:
        """End every generation with `error`, which its client is told, and refuse new ones with it."""
        self._closing = error
        for generation in self._running:
            generation.abort(error)

    def _check_share(self, caller: Caller, more: int) -> None:
        """Raise ApiError where one of several callers would take more places than it may."""
        taken = sum(generation.rows for generation in self._running if generation.caller == caller)
        if taken + more > self._limits.rows_per_key:
            raise ApiError(
                429,
                f"{taken} answers for this key are on their way, and {self._limits.rows_per_key} may be at once. "
                "Try again when one has ended.",
                code="rate_limit_exceeded",
                headers={"retry-after": BUSY_RETRY_S},
            )

    def _end(self, generation: "Generation") -> None:
        generation.cancel()
        self._running.discard(generation)


class Generation:
    """Rows of one HTTP request. Only `_post` runs on the engine thread; the rest belongs to the event loop.

    Attributes:
        caller: whose request it is. rows: how many it has.
        prompt_logprobs: for each row those of its prompt, where it asked; complete before the row's first token.
        cached: for each row how many tokens of its prompt the cache had; None until its reading has begun.
    """

    def __init__(
        self,
        engine: EngineHandle,
        limits: Limits,
        settings: LiveSettings,
        requests: Sequence[Request],
        caller: Caller,
    ) -> None:
        self.caller = caller
        self.rows = len(requests)
        self._engine = engine
        self._limits = limits
        self._settings = settings
        self._requests = requests
        self.prompt_logprobs: list[list[TokenLogprob]] = [[] for _ in requests]
        self.cached: list[int | None] = [None for _ in requests]
        self._open = set(range(len(requests)))
        self._events: deque[tuple[int, TokenEvent | FinishEvent]] = deque()
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._waking = False  # whether this loop is going to look at the events in any case
        self._resting = False  # whether that is for later
        self._abort: ApiError | None = None
        self._waits_since: float | None = time.monotonic()  # None once a row has begun

    def submit(self) -> None:
        for index, request in enumerate(self._requests):
            self._engine.submit(request, partial(self._post, index))

    async def batches(self) -> AsyncIterator[Batch]:
        """What the engine has told since last time, until every row has finished.

        An empty batch means `keep_alive_s` of silence. A batch comes at once, but PACE_S after the one before, unless
        it has an end in it. A reader that is slow gets more in one.

        Raises:
            ApiError: the generation was aborted, or the engine hangs or has died.
        """
        while self._open:
            silent = False
            try:
                async with asyncio.timeout(self._settings.value.keep_alive_s):
                    await self._ready.wait()
            except TimeoutError:
                silent = True
                self._check_engine()
                self._check_wait()
            self._ready.clear()
            if self._abort is not None:
                raise self._abort
            batch = []
            while self._events:
                index, event = self._events.popleft()
                batch.append((index, event))
                if isinstance(event, FinishEvent):
                    self._open.discard(index)
            if batch and not self._resting:
                self._resting = True
                self._loop.call_later(PACE_S, self._rested)
            if batch or silent:
                yield batch

    def _rested(self) -> None:
        """Be woken again by what is posted; look at once where there is something already."""
        self._resting = self._waking = False  # before looking: what is posted after this line wakes the loop
        if self._events:
            self._waking = True
            self._ready.set()

    def abort(self, error: ApiError) -> None:
        """Let `batches` raise `error` now."""
        self._abort = self._abort or error
        self._ready.set()

    def cancel(self) -> None:
        """Free the rows that have not finished. The engine ignores ids that it does not know."""
        for index in self._open:
            self._engine.cancel(self._requests[index].id)

    def _post(self, index: int, event: Event) -> None:
        if isinstance(event, PrefillEvent):
            self.prompt_logprobs[index] += event.logprobs
            self.cached[index] = event.cached
            self._waits_since = None
        if not isinstance(event, TokenEvent | FinishEvent):
            return
        self._events.append((index, event))
        if not self._waking or isinstance(event, FinishEvent):
            self._waking = True
            # Once the server's loop has closed there is no client left, and the engine must not suffer for it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ready.set)

    def _check_engine(self) -> None:
        if stalled(self._engine, self._limits):
            raise ApiError(500, "The engine does not respond.", code="engine_stalled")
        if self._engine.state in ("failed", "closed") and not self._events:
            raise ApiError(500, "The engine has stopped.", code="engine_failed")

    def _check_wait(self) -> None:
        if self._waits_since is not None and time.monotonic() - self._waits_since > self._limits.queue_wait_s:
            raise ApiError(
                503,
                f"The engine was too busy to begin with this request for {self._limits.queue_wait_s:g} s.",
                code="queue_timeout",
                headers={"retry-after": QUEUE_RETRY_S},
            )


def failure(event: FinishEvent, engine: EngineHandle) -> ApiError | None:
    """What the client is told where a row did not end by itself; None where it did."""
    if event.reason == "error":
        return ApiError(500, event.error or "The engine failed on this request.", code="engine_error")
    if event.reason == "cancelled":
        if engine.state in ("failed", "closed"):
            return ApiError(503, "The engine was stopped during this request.", code="engine_closed")
        # The operator stopped it: a client that tries again by itself would undo that.
        return ApiError(
            503, "This request was cancelled on the server.", code="cancelled", headers={"x-should-retry": "false"}
        )
    return None
