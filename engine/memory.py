"""What rows may take of the machine's memory, decided before they are begun: nothing is ever swapped. No mlx."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.caches.capacity import capacity
from engine.errors import OutOfMemoryError
from engine.request import MAX_DEPTH
from engine.row import Row

COPIES = 2
"""Keys and values exist twice while a row joins or leaves the batch, or its cache grows (measured on the CPU, which
lets go of nothing before the last layer is done: 268 MB of caches, 537 MB at the peak)."""

STATES = 3
"""Recurrent states that a row may have at once: that of a step being built, of the one in flight, and of the one before
it, from which the end of an answer is made."""

SURPLUS = 2 * (MAX_DEPTH + 1)  # tokens that two steps under way may write past a row's end
RESERVE = 2048  # tokens set aside for an answer without a limit; more is set aside when it gets there
WORK = 0.1  # of the limit: hiddens of a chunk, the allocator's own, and whatever was not thought of


@dataclass(frozen=True, slots=True)
class RowCost:
    """Bytes that one row takes.

    Attributes:
        token: of keys and values in all layers, the head's included, for each slot of its capacity.
        fixed: of recurrent states and of a step's work, whatever its length.
    """

    token: int
    fixed: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The limit, and what it is spent on before any row comes.

    Attributes:
        limit: bytes that everything may take together. weights: bytes of the model, and of others beside it.
        longest: tokens that a row can ever have.

    Raises:
        OutOfMemoryError: on making one whose weights leave no room.
    """

    limit: int
    weights: int
    cost: RowCost
    longest: int

    def __post_init__(self) -> None:
        if self.batch_bytes(1, capacity(1)) > self.budget:
            raise OutOfMemoryError(
                f"The model's weights take {_size(self.weights)} and the limit is {_size(self.limit)}, of which "
                f"{_size(int(self.limit * WORK))} are kept for work; that leaves no room for a request. Use a smaller "
                "or more quantised model, or allow the engine more memory."
            )

    @property
    def budget(self) -> int:
        """Bytes for rows and cached prefixes."""
        return int(self.limit * (1 - WORK)) - self.weights

    def batch_bytes(self, rows: int, slots: int) -> int:
        """Bytes of `rows` rows that are decoded together: the longest one's slots are set aside for each of them."""
        return rows * (COPIES * slots * self.cost.token + self.cost.fixed)

    def slots(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Slots to set aside for a request."""
        tokens = prompt_tokens + (RESERVE if max_tokens is None else max_tokens)
        return capacity(min(tokens, self.longest) + SURPLUS)

    def check(self, prompt_tokens: int, max_tokens: int | None) -> None:
        """Raise OutOfMemoryError for a request that could not be run even alone."""
        needed = self.batch_bytes(1, self.slots(prompt_tokens, max_tokens))
        if needed > self.budget:
            answer = "the beginning of an answer" if max_tokens is None else f"max_tokens {max_tokens}"
            raise OutOfMemoryError(
                f"A prompt of {prompt_tokens} tokens with {answer} needs {_size(needed)} of caches, and "
                f"{_size(self.budget)} are free beside the model: prompt and answer may have {self.most_tokens} tokens "
                "together. Send a shorter prompt or a smaller max_tokens, or start the engine with --kv-bits 8."
            )

    @property
    def most_tokens(self) -> int:
        """Tokens that the longest possible row may have."""
        slots = capacity(1)
        while self.batch_bytes(1, capacity(slots + 1)) <= self.budget:
            slots = capacity(slots + 1)
        return min(slots - SURPLUS, self.longest)


class Reservations:
    """What begun rows hold of a plan.

    Rows in a batch have one capacity, the longest one's, and a batch keeps it until its last row has left; so the
    widest row since then counts, for all.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self._slots: dict[Row, int] = {}
        self._widest = 0

    @property
    def room(self) -> int:
        """Bytes that are not set aside: cached prefixes may have them."""
        return self.plan.budget - self.plan.batch_bytes(len(self._slots), self._widest)

    def take(self, row: Row) -> bool:
        """Set memory aside for a row about to be begun; False where there is not enough now."""
        slots = self.plan.slots(len(row.request.prompt), row.request.max_tokens)
        return self._set(row, slots)

    def extend(self, row: Row) -> bool:
        """Set more aside where an answer without a limit has used up what it had; False where there is no more."""
        slots = capacity(len(row.request.prompt) + len(row.made) + SURPLUS)
        return slots <= self._slots[row] or self._set(row, slots)

    def keep(self, rows: Iterable[Row]) -> None:
        """Take back what was set aside for all but these."""
        self._slots = {row: self._slots[row] for row in rows}
        if not self._slots:
            self._widest = 0

    def _set(self, row: Row, slots: int) -> bool:
        widest = max(self._widest, slots)
        rows = len({*self._slots, row})
        if self.plan.batch_bytes(rows, widest) > self.plan.budget:
            return False
        self._slots[row], self._widest = slots, widest
        return True


def out_of_memory(error: Exception) -> bool:
    """True for what MLX raises where the system or the device has no more memory to give."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("Unable to allocate", "out of memory", "Insufficient Memory", "bad_alloc")
    )


def no_more_room(prompt_tokens: int, made: int) -> OutOfMemoryError:
    """What a row is told whose answer without a limit has grown as far as the memory beside the other rows allows."""
    return OutOfMemoryError(
        f"The answer has {made} tokens after a prompt of {prompt_tokens}, and there is no memory for more of it beside "
        "what else runs. Send a max_tokens, so that memory is set aside before it begins, or send fewer requests at "
        "once, or start the engine with --kv-bits 8."
    )


def not_beside(size: int, room: int) -> OutOfMemoryError:
    """What is told of a model that is to run beside the engine's own and does not fit in what is free."""
    return OutOfMemoryError(
        f"The model for this needs {_size(size)}, and {_size(room)} are free beside the chat model and its requests. "
        "Try again when fewer requests run, use a smaller model, or allow the engine more memory."
    )


def ran_out(rows: int) -> OutOfMemoryError:
    """What a row is told that ended because memory ran out under it and `rows - 1` others, against the plan."""
    return OutOfMemoryError(
        f"The machine had no more memory to give while {rows} request{'s' if rows > 1 else ''} ran; what they held has "
        "been freed. Send a shorter prompt or a smaller max_tokens, close other programs, or start the engine with "
        "less memory, fewer rows or --kv-bits 8."
    )


def _size(count: int) -> str:
    return f"{max(count, 0) / 2**30:.2f} GiB" if count >= 2**29 else f"{max(count, 0) / 2**20:.0f} MiB"
