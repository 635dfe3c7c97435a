"""Who runs next: admission, the prefill budget, and which rows decode. No mlx, so it is tested in milliseconds."""

from collections import deque
from dataclasses import dataclass

from engine.row import Row

CHUNK_ALONE = 512
CHUNK_BESIDE_ROWS = 128  # bounds how long running rows wait for a newcomer's prompt


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn of the engine: read `chunk` tokens of a prompt, then one step of the running rows."""

    prefill: Row | None
    chunk: int


class Scheduler:
    """Requests in the order they came: one prompt is read at a time, the rows that are done reading decode together.

    Attributes:
        waiting: not begun. reading: its prompt is being read. running: decoding, in batch order.
    """

    def __init__(self, max_rows: int) -> None:
        self.waiting: deque[Row] = deque()
        self.reading: Row | None = None
        self.running: list[Row] = []
        self._max_rows = max_rows

    @property
    def idle(self) -> bool:
        return not self.waiting and self.reading is None and not self.running

    @property
    def rows(self) -> list[Row]:
        """Every row that has not ended, the oldest stage first."""
        return [*self.running, *([self.reading] if self.reading is not None else []), *self.waiting]

    def add(self, row: Row) -> None:
        self.waiting.append(row)

    def find(self, request_id: str) -> Row | None:
        return next((row for row in self.rows if row.request.id == request_id), None)

    def plan(self) -> Plan:
        """What to do now; moves the next waiting row to reading where there is room for it."""
        if self.reading is None and self.waiting and len(self.running) < self._max_rows:
            self.reading = self.waiting.popleft()
        return Plan(self.reading, CHUNK_BESIDE_ROWS if self.running else CHUNK_ALONE)

    def start(self, row: Row) -> None:
        """The row's prompt is read: it decodes from now on, last in the batch."""
        assert row is self.reading
        self.reading = None
        self.running.append(row)

    def drop_ended(self) -> list[int]:
        """Forget rows that have ended; the places in the batch that stay, in order."""
        keep = [place for place, row in enumerate(self.running) if row.finished is None]
        self.running = [self.running[place] for place in keep]
        self.waiting = deque(row for row in self.waiting if row.finished is None)
        if self.reading is not None and self.reading.finished is not None:
            self.reading = None
        return keep
