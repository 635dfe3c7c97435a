"""Random numbers as a pure function of (seed, position, purpose).

Nothing is drawn from a stream, so a row's numbers do not depend on its neighbours, on the depth, or on how often a
position was drafted. The generator is MLX's Threefry (Salmon et al. 2011), keyed per row and position.
"""

import hashlib
from collections.abc import Sequence
from enum import IntEnum

import mlx.core as mx


class Purpose(IntEnum):
    """Independent numbers for one position. A coupled draft uses TARGET's, which is what couples it."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


def row_keys(seeds: Sequence[int]) -> mx.array:
    """One key for each row and purpose: [B, 3, 2] uint32."""
    return mx.array([[_key(seed, purpose) for purpose in Purpose] for seed in seeds], dtype=mx.uint32)


def _key(seed: int, purpose: Purpose) -> list[int]:
    digest = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=8, person=purpose.name.encode()).digest()
    return [int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")]


def of_step(keys: mx.array, start: mx.array) -> mx.array:
    """Keys [B, 2] whose numbers a step that starts at position start[b] has for itself.

    How many drafts stand may depend on numbers of positions that are then drafted again (block verification looks at
    the whole block), so a later step must not see the same ones there.
    """
    return mx.stack([keys[:, 0], keys[:, 1] + start.astype(mx.uint32)], axis=-1)


def _at(keys: mx.array, positions: mx.array) -> mx.array:
    """Keys [B, 2] at positions [B, T]: [B * T, 2]."""
    first = keys[:, :1] + positions.astype(mx.uint32)
    return mx.stack([first, mx.broadcast_to(keys[:, 1:], first.shape)], axis=-1).reshape(-1, 2)


def gumbel(keys: mx.array, positions: mx.array, vocab_size: int) -> mx.array:
    """Gumbel noise for every token: keys [B, 2], positions [B, T] -> [B, T, V] float32.

    argmax(log p + gumbel) draws from p.
    """
    drawn: mx.array = mx.vmap(lambda key: mx.random.gumbel((vocab_size,), key=key))(_at(keys, positions))
    return drawn.reshape(*positions.shape, vocab_size)


def uniform(keys: mx.array, positions: mx.array) -> mx.array:
    """One number in [0, 1) for every position: keys [B, 2], positions [B, T] -> [B, T] float32."""
    drawn: mx.array = mx.vmap(lambda key: mx.random.uniform(shape=(1,), key=key))(_at(keys, positions))
    return drawn.reshape(positions.shape)
