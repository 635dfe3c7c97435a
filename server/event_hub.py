"""The engine's events for those who watch them over HTTP: each at its own speed, and none at the engine's cost."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from engine.events import Event
from server.errors import ApiError
from server.event_json import Frame
from server.facts import Lost

BUFFER = 4096
"""Events that wait for a slow reader, about a second of eight busy rows; what comes while they do is lost to it."""
MOST_WATCHERS = 16
PACE_S = 0.05
"""Events are sent 20 times a second at most: screens draw no faster, and a wake-up for each costs more than sending."""


class Watcher:
    """One reader. `post` runs on the engine's thread, the rest on the event loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._events: deque[Event] = deque()
        self._waking = False
        self._closed = False
        self._lost = 0  # since the beginning
        self._told = 0  # of these

    def post(self, event: Event) -> None:
        if len(self._events) >= BUFFER:
            self._lost += 1
            return
        self._events.append(event)
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop has closed, and nobody watches
                self._loop.call_soon_threadsafe(self._ready.set)

    def close(self) -> None:
        """Let `batches` end."""
        self._closed = True
        self._ready.set()

    async def batches(self, keep_alive_s: Callable[[], float]) -> AsyncIterator[list[Frame]]:
        """What has come since last time, with a Lost where something is missing; empty after so long a silence."""
        while not self._closed:
            silent = False
            try:
                async with asyncio.timeout(keep_alive_s()):
                    await self._ready.wait()
                await asyncio.sleep(PACE_S)
            except TimeoutError:
                silent = True
            self._ready.clear()
            self._waking = False
            batch = self._taken()
            if batch or silent:
                yield batch

    def _taken(self) -> list[Frame]:
        # All that was lost came after what is here now: while the buffer is full, nothing is added.
        lost = self._lost
        batch: list[Frame] = [self._events.popleft() for _ in range(len(self._events))]
        if lost > self._told:
            batch.append(Lost(lost - self._told))
            self._told = lost
        return batch


class Hub:
    """All who watch."""

    def __init__(self) -> None:
        self._watchers: tuple[Watcher, ...] = ()
        self._closed = False

    def hear(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher.post(event)

    def join(self) -> Watcher:
        """Watch from now on; `leave` must follow. Raises ApiError where as many watch as may."""
        if len(self._watchers) >= MOST_WATCHERS:
            raise ApiError(
                429,
                f"{MOST_WATCHERS} clients watch the events, as many as may; end one of them first.",
                code="rate_limit_exceeded",
                headers={"retry-after": "5"},
            )
        watcher = Watcher()
        self._watchers = (*self._watchers, watcher)
        if self._closed:
            watcher.close()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers = tuple(other for other in self._watchers if other is not watcher)

    def close(self) -> None:
        """End all streams, and those that begin later. Must be called on the event loop."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()
