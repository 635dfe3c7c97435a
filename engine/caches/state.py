"""All caches of a batch of rows, as one thing: the trunk's layers and the head's."""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from engine.caches.clock import Clock
from engine.caches.kv import KVCache
from engine.caches.packing import Packing
from engine.caches.recurrent import RecurrentCache

LayerCache = KVCache | RecurrentCache


class StateCheckpoint(NamedTuple):
    """References to committed arrays; they are never written to."""

    recurrent: list[tuple[mx.array | None, mx.array | None]]
    clock: tuple[mx.array, int]
    head_clock: tuple[mx.array, int]


class ModelState:
    """Trunk and head caches of B rows.

    The trunk's clock counts the tokens whose keys, values and recurrent updates are committed: all but the pending
    one. The head's rows are one behind until the step commits them; it sets `head_clock` itself.
    """

    def __init__(self, trunk: Sequence[LayerCache], head: Sequence[KVCache], clock: Clock, head_clock: Clock) -> None:
        self.trunk = list(trunk)
        self.head = list(head)
        self.clock = clock
        self.head_clock = head_clock

    @classmethod
    def new(cls, recurrent_layers: Sequence[bool], head_layers: int, packing: Packing | None = None) -> "ModelState":
        """Empty caches of one row: a recurrent cache where the flag says so, a KV cache elsewhere.

        `packing` is the trunk's alone. The head's one layer is little memory, and what it loses is lost acceptance.
        """
        clock, head_clock = Clock.zero(), Clock.zero()
        trunk: list[LayerCache] = [RecurrentCache(clock) if r else KVCache(clock, packing) for r in recurrent_layers]
        return cls(trunk, [KVCache(head_clock) for _ in range(head_layers)], clock, head_clock)

    def read(self, reading: bool) -> None:
        """Switch between reading a prompt (every token kept at once) and verifying blocks."""
        self.clock.reading = self.head_clock.reading = reading

    def accept(self, kept: mx.array, most: int) -> None:
        """Commit the first kept[b] tokens of the block just verified in row b; `most` is the block's length."""
        for cache in self.trunk:
            cache.accept(kept)
        self.clock.advance(kept, most)

    def checkpoint(self) -> "StateCheckpoint":
        """What is committed now. Keys and values need no copy: what a failed step wrote lies past the clocks."""
        recurrent = [cache.checkpoint() for cache in self.trunk if isinstance(cache, RecurrentCache)]
        return StateCheckpoint(recurrent, self.clock.checkpoint(), self.head_clock.checkpoint())

    def restore(self, checkpoint: "StateCheckpoint") -> None:
        """Go back to what was committed then."""
        caches = [cache for cache in self.trunk if isinstance(cache, RecurrentCache)]
        for cache, kept in zip(caches, checkpoint.recurrent, strict=True):
            cache.restore(kept)
        self.clock.restore(checkpoint.clock)
        self.head_clock.restore(checkpoint.head_clock)

    def tighten(self, longest: int) -> None:
        """Tell the clocks the true length of the longest row, once the host has read it."""
        self.clock.bound = self.head_clock.bound = longest

    def arrays(self) -> list[mx.array]:
        """All device arrays, to be evaluated together."""
        arrays = [array for cache in (*self.trunk, *self.head) for array in cache.arrays()]
        return [*arrays, self.clock.offset, self.head_clock.offset]

    def select(self, rows: list[int]) -> "ModelState":
        """The state of some of the rows, in the order given."""
        index = mx.array(rows, dtype=mx.int32)
        clock = Clock(self.clock.offset[index], self.clock.bound)
        head_clock = Clock(self.head_clock.offset[index], self.head_clock.bound)
        return ModelState(
            [cache.select(index, clock) for cache in self.trunk],
            [cache.select(index, head_clock) for cache in self.head],
            clock,
            head_clock,
        )

    @staticmethod
    def merge(parts: "list[ModelState]") -> "ModelState":
        """One state with the rows of all parts, in their order. A lone part is taken as it is."""
        if len(parts) == 1:
            return parts[0]
        clock = _merge_clocks([part.clock for part in parts])
        head_clock = _merge_clocks([part.head_clock for part in parts])
        trunk: list[LayerCache] = []
        for caches in zip(*(part.trunk for part in parts), strict=True):
            kind = type(caches[0])
            trunk.append(kind.merge(list(caches), clock))  # all of one kind, by construction
        head = [KVCache.merge(list(caches), head_clock) for caches in zip(*(part.head for part in parts), strict=True)]
        return ModelState(trunk, head, clock, head_clock)


def _merge_clocks(clocks: list[Clock]) -> Clock:
    return Clock(mx.concatenate([clock.offset for clock in clocks]), max(clock.bound for clock in clocks))
