"""Arrays of several batches as arrays that can be put one below the other."""

from collections.abc import Sequence

import mlx.core as mx

from engine.caches.clock import Clock


def whole(arrays: Sequence[mx.array | None], clocks: Sequence[Clock]) -> list[mx.array]:
    """The arrays [rows, ...], zeros in place of None: the cache of a prompt of one token has not been written to.

    Empty where all are None.
    """
    like = next((array for array in arrays if array is not None), None)
    if like is None:
        return []
    return [
        mx.zeros((clock.offset.shape[0], *like.shape[1:]), dtype=like.dtype) if array is None else array
        for array, clock in zip(arrays, clocks, strict=True)
    ]
