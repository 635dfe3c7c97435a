"""Retrieval models in memory: brought in when they are needed, let go of when nobody has used them for a while.

All of it belongs to the engine's thread but `Residents.loaded`. No mlx is imported before a job runs.
"""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.retrieval.card import Card
from engine.retrieval.jobs import Worker

if TYPE_CHECKING:
    import mlx.core as mx

    from engine.retrieval.load import Encoder


@dataclass(slots=True)
class Resident:
    """A model that is in memory, or on its way there.

    Attributes:
        unread: its weights that are not read yet, in parts. size: bytes set aside for it and its work.
        users: requests that need it now. used_at: when the last one ended.
    """

    encoder: "Encoder"
    unread: "deque[list[mx.array]]"
    size: int
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)

    def read(self) -> Generator[float, None, None]:
        """Read the weights that are still missing, a part a job."""
        import mlx.core as mx

        while self.unread:
            mx.eval(self.unread[0])
            self.unread.popleft()
            yield 0.0


class Residents:
    """The models that are in memory, one copy of each folder, whatever it is used for."""

    def __init__(self, engine: Worker, idle_s: float) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._models: dict[Path, Resident] = {}
        self._thread: threading.Thread | None = None

    @property
    def loaded(self) -> list[Path]:
        """Folders of the models that hold memory now; any thread may ask."""
        return list(self._models)

    @contextmanager
    def using(self, card: Card) -> Iterator[Resident]:
        """The model of a card, which stays while inside. Its weights may still have to be read.

        Raises OutOfMemoryError where it does not fit beside what is here, and ModelBrokenError.
        """
        self._know_thread()
        resident = self._models.get(card.path) or self._bring(card)
        resident.users += 1
        try:
            yield resident
        finally:
            resident.users -= 1
            resident.used_at = time.monotonic()

    def _bring(self, card: Card) -> Resident:
        from engine.retrieval.load import begin

        encoder, parts, size = begin(card)
        self._engine.set_aside(size)
        resident = self._models[card.path] = Resident(encoder, deque(parts), size)
        self._look_in(self._idle_s, card.path)
        return resident

    def _know_thread(self) -> None:
        """Forget the models of an engine that has failed; the one in its place has a plan of its own."""
        if self._thread is not threading.current_thread():
            self._thread = threading.current_thread()
            self._models.clear()

    def _look_in(self, seconds: float, path: Path) -> None:
        """Ask the engine's thread after so many seconds whether the model may go."""

        def ask() -> None:
            with suppress(EngineError):  # it has stopped, and its memory is free
                self._engine.perform(partial(self._let_go, path))

        timer = threading.Timer(seconds, ask)
        timer.daemon = True
        timer.start()

    def _let_go(self, path: Path) -> None:
        import mlx.core as mx

        self._know_thread()
        resident = self._models.get(path)
        if resident is None:
            return
        left = self._idle_s if resident.users else resident.used_at + self._idle_s - time.monotonic()
        if left > 0:
            self._look_in(left, path)
            return
        del self._models[path]
        self._engine.set_aside(-resident.size)
        del resident
        mx.clear_cache()
