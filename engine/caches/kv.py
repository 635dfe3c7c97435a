"""Attention keys and values of a batch of rows with ragged lengths."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine.caches.capacity import capacity
from engine.caches.clock import Clock
from engine.caches.merge import whole
from engine.caches.packing import Packing

Arrays = tuple[mx.array, ...]


class KVCache:
    """Keys and values, written in place at each row's own offset.

    Follows the interface that mlx-lm's model classes use. What lies past a row's offset is dead: a refused draft is
    taken back by not advancing the clock.

    Attributes:
        keys, values: [B, heads, capacity, dim], alone in its tuple or, where they are packed, the three arrays of
            that; empty before the first write.
        bits, group_size: there only where attention is to multiply with packed arrays, which is how mlx-lm tells.
    """

    bits: int
    group_size: int

    def __init__(self, clock: Clock, packing: Packing | None = None) -> None:
        self.clock = clock
        self.packing = packing
        self.keys: Arrays = ()
        self.values: Arrays = ()
        if packing is not None and packing.product:
            self.bits, self.group_size = packing.bits, packing.group

    @property
    def offset(self) -> mx.array:
        return self.clock.offset

    def make_mask(self, length: int, return_array: bool = False, window_size: int | None = None) -> Any:
        return self.clock.mask(length)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array | Arrays, mx.array | Arrays]:
        """Write the next tokens, [B, heads, T, dim], and give all slots that may be live.

        Where a packing is set, the new tokens come back as the packing kept them, so a token sees its own block
        exactly as later ones will.
        """
        length = keys.shape[2]
        self.keys = self._written(self.keys, keys)
        self.values = self._written(self.values, values)
        limit = self.clock.limit(length)
        return self._read(self.keys, limit), self._read(self.values, limit)

    def _written(self, held: Arrays, new: mx.array) -> Arrays:
        length = new.shape[2]
        parts = (new,) if self.packing is None else self.packing.pack(new)
        limit = self.clock.limit(length)
        if not held:
            held = tuple(mx.zeros((*x.shape[:2], capacity(limit), x.shape[3]), dtype=x.dtype) for x in parts)
        elif held[0].shape[2] < limit:
            held = tuple(_grown([x], capacity(limit)) for x in held)
        if self.clock.reading:
            start = self.clock.bound
            for x, part in zip(held, parts, strict=True):
                x[:, :, start : start + length] = part
            return held
        slots = self.clock.slots(length)
        return tuple(
            mx.put_along_axis(x, mx.broadcast_to(slots, part.shape), part, axis=2)
            for x, part in zip(held, parts, strict=True)
        )

    def _read(self, held: Arrays, end: int) -> mx.array | Arrays:
        live = tuple(x[:, :, :end] for x in held)
        if self.packing is None:
            return live[0]
        return live if self.packing.product else self.packing.unpack(live)

    def unpacked(self) -> tuple[mx.array, mx.array]:
        """Keys and values as attention sees them, all slots."""
        if self.packing is None:
            return self.keys[0], self.values[0]
        return self.packing.unpack(self.keys), self.packing.unpack(self.values)

    def accept(self, kept: mx.array) -> None:
        """Nothing to do: the clock's advance is what commits keys and values."""

    def arrays(self) -> list[mx.array]:
        return [*self.keys, *self.values]

    def cut(self, start: int, end: int, row: int = 0) -> Arrays:
        """Copies of the slots from `start` to `end` of one row, for `put`."""
        return tuple(mx.contiguous(x[row : row + 1, :, start:end]) for x in self.arrays())

    def put(self, parts: Sequence[Arrays]) -> None:
        """Take what consecutive cuts hold, the first from slot 0, in place of what is here.

        The cuts are never written to: a lone one that fills its capacity is taken as it is; the next write grows it.
        """
        joined = tuple(_grown(cuts, capacity(sum(x.shape[2] for x in cuts))) for cuts in zip(*parts, strict=True))
        half = len(joined) // 2
        self.keys, self.values = joined[:half], joined[half:]

    def select(self, rows: mx.array, clock: Clock) -> "KVCache":
        """A cache of some of the rows, in the order given."""
        picked = KVCache(clock, self.packing)
        picked.keys, picked.values = (tuple(x[rows] for x in held) for held in (self.keys, self.values))
        return picked

    @staticmethod
    def merge(parts: "list[KVCache]", clock: Clock) -> "KVCache":
        """One cache with the rows of all parts."""
        merged = KVCache(clock, parts[0].packing)
        clocks = [part.clock for part in parts]
        merged.keys = _stacked([part.keys for part in parts], clocks)
        merged.values = _stacked([part.values for part in parts], clocks)
        return merged


def _stacked(parts: Sequence[Arrays], clocks: Sequence[Clock]) -> Arrays:
    """Each array of all batches, one below the other."""
    width = max(len(part) for part in parts)
    stacked = []
    for place in range(width):
        arrays = whole([part[place] if part else None for part in parts], clocks)
        longest = max(array.shape[2] for array in arrays)
        stacked.append(mx.concatenate([_grown([array], longest) for array in arrays], axis=0))
    return tuple(stacked)


def _grown(parts: Sequence[mx.array], slots: int) -> mx.array:
    """The parts one behind the other, with `slots` slots: copied once."""
    missing = slots - sum(part.shape[2] for part in parts)
    if not missing:
        return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=2)
    like = parts[0]
    return mx.concatenate([*parts, mx.zeros((*like.shape[:2], missing, like.shape[3]), dtype=like.dtype)], axis=2)
