"""How far each row of a batch is committed, shared by all its caches."""

import mlx.core as mx

MOST_COLUMNS = 1 << 30
ROUND = 64  # attention looks at a multiple of this many slots, so that few shapes occur


class Clock:
    """Committed lengths of B rows, on the device, with an upper bound that the host knows.

    Attributes:
        offset: [B] int32, tokens committed; slots at and after it are dead and will be overwritten.
        bound: no row's offset is above it.
        reading: True while one row reads its prompt: all tokens are kept and `bound` is its exact offset.
        live: columns of a verify step that count; a step may have more, whose outcome nobody reads.
    """

    def __init__(self, offset: mx.array, bound: int) -> None:
        self.offset = offset
        self.bound = bound
        self.reading = False
        self.live = MOST_COLUMNS
        self._slots: tuple[mx.array, mx.array] | None = None

    @classmethod
    def zero(cls) -> "Clock":
        return cls(mx.zeros((1,), dtype=mx.int32), 0)

    def slots(self, length: int) -> mx.array:
        """Slots of the next `length` tokens, [B, 1, length, 1]; made once for all the layers of a step."""
        if self._slots is None or self._slots[0] is not self.offset or self._slots[1].shape[2] != length:
            self._slots = (self.offset, (self.offset[:, None] + mx.arange(length))[:, None, :, None])
        return self._slots[1]

    def limit(self, length: int) -> int:
        """How many slots, from 0, may be live once `length` more tokens are written."""
        end = self.bound + length
        return end if self.reading else -(-end // ROUND) * ROUND

    def mask(self, length: int) -> mx.array | str | None:
        """Which of `limit(length)` slots each of the next tokens may see: [B, 1, length, limit], or mlx's shorthand."""
        if self.reading:
            return "causal" if length > 1 else None
        return mx.arange(self.limit(length)) <= self.slots(length)

    def checkpoint(self) -> tuple[mx.array, int]:
        return self.offset, self.bound

    def restore(self, checkpoint: tuple[mx.array, int]) -> None:
        self.offset, self.bound = checkpoint

    def advance_all(self, length: int) -> None:
        """Commit `length` tokens in every row."""
        self.offset = self.offset + length
        self.bound += length

    def advance(self, kept: mx.array, most: int) -> None:
        """Commit kept[b] tokens, at most `most`, in row b."""
        self.offset = self.offset + kept
        self.bound += most
