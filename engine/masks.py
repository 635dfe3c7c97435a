"""Grammar masks on the device: which tokens may stand at each place of a step, [B, T, V]."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine.rows import Rows


def of_next(rows: Rows) -> mx.array:
    """What may come next in each row, [B, V] bool; known before anything is drafted."""
    return _unpacked(rows, [()] * len(rows), 1)[:, 0]


def along(rows: Rows, drafts: mx.array) -> mx.array:
    """What may stand at each place behind the first of the drafts [B, D], [B, D + 1, V] bool. Reads the drafts."""
    ids: Any = drafts.tolist()
    return _unpacked(rows, ids, drafts.shape[1] + 1)


def _unpacked(rows: Rows, drafts: Sequence[Sequence[int]], places: int) -> mx.array:
    words = -(-rows.vocab_size // 32)
    anything = [b"\xff" * (4 * words)] * places
    masks = [
        anything if row.grammar is None else row.grammar.masks(ids) for row, ids in zip(rows.rows, drafts, strict=True)
    ]
    packed = b"".join(mask for of_row in masks for mask in of_row)
    view: Any = memoryview(packed).cast("I", shape=[len(rows), places, words])
    bits = mx.array(view)
    bits = (bits[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
    return bits.reshape(len(rows), places, -1)[..., : rows.vocab_size].astype(mx.bool_)
