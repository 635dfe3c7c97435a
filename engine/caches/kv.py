"""Attention keys and values of a batch of rows with ragged lengths."""

from typing import Any

import mlx.core as mx

from engine.caches.clock import ROUND, Clock
from engine.caches.merge import whole

SMALLEST = 256


class KVCache:
    """Keys and values [B, heads, capacity, dim], written in place at each row's own offset.

    Follows the interface that mlx-lm's model classes use. What lies past a row's offset is dead: a refused draft is
    taken back by not advancing the clock. Capacities are powers of two.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        return self.clock.offset

    def make_mask(self, length: int, return_array: bool = False, window_size: int | None = None) -> Any:
        return self.clock.mask(length)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the next tokens, [B, heads, T, dim], and give all slots that may be live."""
        length = keys.shape[2]
        limit = self.clock.limit(length)
        self._reserve(limit, keys, values)
        assert self.keys is not None
        assert self.values is not None
        if self.clock.reading:
            start = self.clock.bound
            self.keys[:, :, start : start + length] = keys
            self.values[:, :, start : start + length] = values
        else:
            slots = self.clock.slots(length)
            self.keys = mx.put_along_axis(self.keys, mx.broadcast_to(slots, keys.shape), keys, axis=2)
            self.values = mx.put_along_axis(self.values, mx.broadcast_to(slots, values.shape), values, axis=2)
        return self.keys[:, :, :limit], self.values[:, :, :limit]

    def _reserve(self, slots: int, keys: mx.array, values: mx.array) -> None:
        if self.keys is None or self.values is None:
            capacity = _capacity(slots)
            self.keys = mx.zeros((*keys.shape[:2], capacity, keys.shape[3]), dtype=keys.dtype)
            self.values = mx.zeros((*values.shape[:2], capacity, values.shape[3]), dtype=values.dtype)
        elif slots > self.keys.shape[2]:
            self.keys, self.values = (_grown(x, _capacity(slots)) for x in (self.keys, self.values))

    def accept(self, kept: mx.array) -> None:
        """Nothing to do: the clock's advance is what commits keys and values."""

    def arrays(self) -> list[mx.array]:
        return [x for x in (self.keys, self.values) if x is not None]

    def select(self, rows: mx.array, clock: Clock) -> "KVCache":
        """A cache of some of the rows, in the order given."""
        picked = KVCache(clock)
        if self.keys is not None and self.values is not None:
            picked.keys, picked.values = self.keys[rows], self.values[rows]
        return picked

    @staticmethod
    def merge(parts: "list[KVCache]", clock: Clock) -> "KVCache":
        """One cache with the rows of all parts."""
        merged = KVCache(clock)
        for name in ("keys", "values"):
            arrays = whole([getattr(part, name) for part in parts], [part.clock for part in parts])
            if arrays:
                capacity = max(array.shape[2] for array in arrays)
                setattr(merged, name, mx.concatenate([_grown(array, capacity) for array in arrays], axis=0))
        return merged


def _capacity(slots: int) -> int:
    capacity = max(SMALLEST, ROUND)
    while capacity < slots:
        capacity *= 2
    return capacity


def _grown(x: mx.array, capacity: int) -> mx.array:
    if x.shape[2] == capacity:
        return x
    return mx.concatenate([x, mx.zeros((*x.shape[:2], capacity - x.shape[2], x.shape[3]), dtype=x.dtype)], axis=2)
