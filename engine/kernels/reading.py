"""What reading a prompt on an x86 CPU spends most on beside its products, made of operations that MLX runs wide there.

MLX takes one exponential at a time, 9 to 30 ns each: in 512 tokens of the 13M model they cost more than all its
products. Made of additions, multiplications and a shift of bits, which run four at a time, one costs 1.5 ns; but that
is six operations, 70 us with a product around them, where MLX's own is one of 30 for a single token.
"""

import mlx.core as mx

LOG2_E = 1.4426950408889634
POWER_OF_TWO = (
    0.0013276471520238273,
    0.009675541330637749,
    0.05550713274959624,
    0.24022119723934995,
    0.6931469670638656,
    1.000000071654656,
)
"""2^f for -0.5 <= f <= 0.5, highest power first; Lawson's fit, relative error below 7.5e-8."""
NEAREST = 1.5 * 2.0**23  # what is added to it rounds a float32 to a whole number, and leaves that in the low bits
EXPONENT_BITS = 23
LEAST = -126.0  # of exponents of two: the smallest normal number
FEW = 1500  # numbers, up to which MLX's own exponential is faster
QUERIES = 128
SCORES = 1 << 18
"""Queries, and scores over all heads, of one tile of attention. A tile takes 1 MB, which stays in a cache, and whose
memory the allocator keeps: with 512 queries of 5 heads before 2,048 keys, tiles twice as large took 58 ms, these 24."""
TILES = 16  # kept until they are joined
UNSEEN = -1e30


def exp(x: mx.array) -> mx.array:
    """e^x of float32; of more than a few, 2^-126 and 2^126 at the ends of the range, not 0 and infinite."""
    if x.size <= FEW:
        return mx.exp(x)
    return _exp2(mx.clip(x * LOG2_E, LEAST, -LEAST))


def sigmoid(x: mx.array) -> mx.array:
    return 1.0 / (1.0 + exp(-x))


def silu(x: mx.array) -> mx.array:
    return x / (1.0 + exp(-x))


def causal_convolution(window: mx.array, weight: mx.array) -> mx.array:
    """Each channel alone: [B, taps - 1 + T, C], [C, taps, 1] -> [B, T, C].

    MLX's own takes 2.7 ms for 512 tokens of 768 channels, the taps one after another 0.6 ms.
    """
    taps = weight.shape[1]
    length = window.shape[1] - taps + 1
    total = window[:, :length] * weight[:, 0, 0]
    for tap in range(1, taps):
        total = total + window[:, tap : tap + length] * weight[:, tap, 0]
    return total


def attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Causal attention of the last T of S positions, float32, tile by tile, each with a softmax of its own that is put
    right where they are joined (Dao et al. 2022, "FlashAttention", arXiv 2205.14135).

    Args:
        queries: [B, H, T, D]. keys, values: [B, Hk, S, D], H a multiple of Hk.
    Returns:
        [B, H, T, D].
    """
    batch, heads, length, width = queries.shape
    key_heads, before = keys.shape[1], keys.shape[2] - length
    grouped = (queries * (scale * LOG2_E)).reshape(batch, key_heads, heads // key_heads, length, width)
    outputs = []
    for start in range(0, length, QUERIES):
        count = min(QUERIES, length - start)
        rows = grouped[:, :, :, start : start + count].reshape(batch, key_heads, -1, width)
        past, end = before + start, before + start + count
        seen = mx.tile(mx.tril(mx.ones((count, count), dtype=mx.bool_)), (heads // key_heads, 1))
        tiles = [_tile(rows, keys[:, :, past:end], values[:, :, past:end], seen)]
        parts = -(-past * batch * heads * count // SCORES)
        for part in range(parts):
            span = slice(past * part // parts, past * (part + 1) // parts)
            tiles.append(_tile(rows, keys[:, :, span], values[:, :, span]))
            if len(tiles) == TILES:
                tiles = [_joined(tiles)]
        _, weight, output = _joined(tiles)
        outputs.append((output / weight).reshape(batch, heads, count, width))
    return mx.concatenate(outputs, axis=2)


_Tile = tuple[mx.array, mx.array, mx.array]  # per query: its largest score, sum of weights, weighted sum of values


def _tile(queries: mx.array, keys: mx.array, values: mx.array, seen: mx.array | None = None) -> _Tile:
    scores = queries @ keys.swapaxes(-1, -2)
    if seen is not None:
        scores = mx.where(seen, scores, UNSEEN)
    largest = mx.max(scores, axis=-1, keepdims=True)
    weights = _exp2(mx.maximum(scores - largest, LEAST))
    return largest, weights @ mx.ones((keys.shape[2], 1)), weights @ values


def _joined(tiles: list[_Tile]) -> _Tile:
    """The tile of all their keys."""
    largest, weight, output = (mx.stack(list(parts)) for parts in zip(*tiles, strict=True))
    most = mx.max(largest, axis=0)
    share = _exp2(mx.maximum(largest - most, LEAST))
    return most, mx.sum(share * weight, axis=0), mx.sum(share * output, axis=0)


def _exp2(x: mx.array) -> mx.array:
    """2^x for -126 <= x <= 126: that of the fraction, with the whole part added to its exponent."""
    fraction, whole = _parts(x)
    return (fraction.view(mx.int32) + mx.left_shift(whole.view(mx.int32), EXPONENT_BITS)).view(mx.float32)


@mx.compile
def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    whole = x + NEAREST
    fraction = x - (whole - NEAREST)
    power = POWER_OF_TWO[0] * fraction + POWER_OF_TWO[1]
    for factor in POWER_OF_TWO[2:]:
        power = power * fraction + factor
    return power, whole
