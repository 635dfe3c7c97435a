"""Who runs next: admission, whose prompt is read, in what chunks, and which rows decode. No mlx: tested in
milliseconds."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.request import Priority
from engine.row import Row

PASSED_OVER = 4  # interactive requests that are begun while a batch one waits, before it is its turn
SHORT_FIRST = 3  # chunks in a row that may go to others before the prompt that was begun first gets one
SMALLEST_CHUNK = 32
FIRST_CHUNK = 128  # while nothing was measured
RECENT = 3  # chunks whose slowest decides, so that one slow chunk is forgotten soon


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn of the engine: read `chunk` tokens of a prompt, then one step of the running rows."""

    prefill: Row | None
    chunk: int


class ChunkSize:
    """How many tokens of a prompt to read at once: all sizes are powers of two, so that few shapes occur.

    Beside other rows it is the largest size that, at the speed of the slowest of the latest chunks, takes no longer
    than they may wait. Small chunks cost more a token, so a larger size is never expected to be faster than it is.

    Args:
        alone: tokens at once where nobody else waits. stall_s: seconds that other rows may wait for a chunk.
    """

    def __init__(self, alone: int, stall_s: float) -> None:
        self.alone = alone
        self._stall_s = stall_s
        self._seconds: deque[float] = deque(maxlen=RECENT)  # a token

    def beside(self) -> int:
        """The size to read with while other rows wait."""
        size = SMALLEST_CHUNK
        most = self._stall_s / max(self._seconds) if self._seconds else FIRST_CHUNK
        while 2 * size <= min(most, self.alone):
            size *= 2
        return size

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in what a chunk cost. The ends of prompts, a few tokens, say nothing of the speed of chunks."""
        if tokens >= SMALLEST_CHUNK:
            self._seconds.append(seconds / tokens)


class Scheduler:
    """Rows from their arrival to their end.

    Begun first is who came first, interactive before batch, but a batch request is passed over a bounded number of
    times, and of several callers, told apart by the scope of their prompts' cache, the one that has the fewest rows
    begun goes first: one that sends many waits behind its own. A row that there is no memory for yet waits, and nobody
    behind it is begun before it: otherwise short requests could keep a long one out for ever. Prompts of begun rows are
    read by turns, the one with the least left first, so that a short prompt does not wait for a long one; the one that
    was begun first gets a share all the same.

    Attributes:
        reading: rows whose prompts are being read, in the order in which they were begun.
        running: rows that decode, in batch order.

    Args:
        max_rows: rows reading and running together.
        chunks: how much is read at once.
        left: tokens of a begun row's prompt that are still to be read.
        reserve: sets memory aside for a row that is about to be begun; False where there is not enough yet.
    """

    def __init__(
        self,
        max_rows: int,
        chunks: ChunkSize,
        left: Callable[[Row], int],
        reserve: Callable[[Row], bool],
    ) -> None:
        self.chunks = chunks
        self.reading: list[Row] = []
        self.running: list[Row] = []
        self._waiting: dict[Priority, deque[Row]] = {"interactive": deque(), "batch": deque()}
        self._max_rows = max_rows
        self._left = left
        self._reserve = reserve
        self._passed = 0  # interactive rows begun since a batch row could have been
        self._favours = 0  # chunks read since the prompt that was begun first got one

    @property
    def idle(self) -> bool:
        return not self.rows

    @property
    def begun(self) -> list[Row]:
        """Rows that hold memory."""
        return [*self.running, *self.reading]

    @property
    def rows(self) -> list[Row]:
        """Every row that has not been dropped."""
        return [*self.begun, *self._waiting["interactive"], *self._waiting["batch"]]

    def add(self, row: Row) -> None:
        self._waiting[row.request.priority].append(row)

    def find(self, request_id: str) -> Row | None:
        return next((row for row in self.rows if row.request.id == request_id), None)

    def plan(self) -> Plan:
        """What to do now; begins waiting rows where there is room for them."""
        while len(self.reading) + len(self.running) < self._max_rows and self._begin_next():
            pass
        if not self.reading:
            return Plan(None, 0)
        return Plan(self._pick(), self.chunks.alone if len(self.rows) == 1 else self.chunks.beside())

    def _begin_next(self) -> bool:
        interactive, batch = self._waiting["interactive"], self._waiting["batch"]
        its_turn = batch and (not interactive or self._passed >= PASSED_OVER)
        queue = batch if its_turn else interactive
        if not queue:
            return False
        row = self._first_of(queue)
        if not self._reserve(row):
            return False
        queue.remove(row)
        self.reading.append(row)
        self._passed = self._passed + 1 if batch and not its_turn else 0
        return True

    def _first_of(self, queue: deque[Row]) -> Row:
        begun = Counter(row.request.cache_scope for row in self.begun)
        return min(queue, key=lambda row: begun[row.request.cache_scope])  # of equals the first

    def _pick(self) -> Row:
        first = self.reading[0]
        if len(self.reading) == 1 or self._favours >= SHORT_FIRST:
            chosen = first
        else:
            chosen = min(self.reading, key=lambda row: (row.request.priority == "batch", self._left(row)))
        self._favours = 0 if chosen is first else self._favours + 1
        return chosen

    def start(self, row: Row) -> None:
        """The row's prompt is read: it decodes from now on, last in the batch."""
        self.reading.remove(row)
        self.running.append(row)

    def drop_ended(self) -> list[int]:
        """Forget rows that have ended; the places in the batch that stay, in order."""
        keep = [place for place, row in enumerate(self.running) if row.finished is None]
        self.running = [self.running[place] for place in keep]
        self.reading = [row for row in self.reading if row.finished is None]
        for priority, queue in self._waiting.items():
            self._waiting[priority] = deque(row for row in queue if row.finished is None)
        return keep
