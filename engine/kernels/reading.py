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
EXPONENT_BIAS = 127.0
FROM_HALF = (
    0.4142136637081192,
    0.9802578415406912,
    0.3397240751041203,
    0.07849893992334578,
    0.013683281778195696,
    0.0018775766716923167,
)
"""2^(f + 1/2) - 1 for -0.5 <= f <= 0.5, lowest power first; minimax, error below 7.5e-8 of 2^(f + 1/2)."""
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

    A tile has a row for each key: MLX takes the largest of each column three times as fast as that of each row.

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
        columns = grouped[:, :, :, start : start + count].reshape(batch, key_heads, -1, width).swapaxes(-1, -2)
        past, end = before + start, before + start + count
        seen = mx.tile(mx.triu(mx.ones((count, count), dtype=mx.bool_)), (1, heads // key_heads))
        tiles = [_tile(columns, keys[:, :, past:end], values[:, :, past:end], seen)]
        parts = -(-past * batch * heads * count // SCORES)
        for part in range(parts):
            span = slice(past * part // parts, past * (part + 1) // parts)
            tiles.append(_tile(columns, keys[:, :, span], values[:, :, span]))
            if len(tiles) == TILES:
                tiles = [_joined(tiles)]
        _, sums = _joined(tiles)
        output = sums[:, :, :-1] / sums[:, :, -1:]
        outputs.append(output.swapaxes(-1, -2).reshape(batch, heads, count, width))
    return mx.concatenate(outputs, axis=2)


_Tile = tuple[mx.array, mx.array]
"""For each query, a column: its largest score and a half; the weighted sum of values, below it the sum of weights."""


def _tile(queries: mx.array, keys: mx.array, values: mx.array, seen: mx.array | None = None) -> _Tile:
    scores = keys @ queries
    if seen is not None:
        scores = mx.where(seen, scores, UNSEEN)
    above = mx.max(scores, axis=-2, keepdims=True) + 0.5
    weighed = mx.concatenate([values, mx.ones((*values.shape[:-1], 1))], axis=-1)
    return above, weighed.swapaxes(-1, -2) @ _exp2_and_half(scores - above)


def _joined(tiles: list[_Tile]) -> _Tile:
    """The tile of all their keys."""
    above, sums = (mx.stack(list(parts)) for parts in zip(*tiles, strict=True))
    most = mx.max(above, axis=0)
    return most, mx.sum(_exp2_and_half(above - most - 0.5) * sums, axis=0)


def _exp2_and_half(x: mx.array) -> mx.array:
    """2^(x + 1/2) for x <= 0; 0 below 2^-126, and of what is no number.

    The half leaves a mantissa to be made that is at least 1, so that its bits are a whole number that is made like any
    other: one operation in place of four, 0.45 of the time of `_exp2` behind a `maximum`.
    """
    return _bits(x).view(mx.float32)


@mx.compile
def _bits(x: mx.array) -> mx.array:
    one = float(1 << EXPONENT_BITS)
    whole = (x + NEAREST) - NEAREST
    fraction = x - whole
    square = fraction * fraction
    a, b, c, d, e, f = (factor * one for factor in FROM_HALF)
    # In pairs, since MLX makes one operation of no more than eleven that wait for each other; the half rounds.
    mantissa = ((f * fraction + e) * square + (d * fraction + c)) * square + (b * fraction + (a + 0.5))
    exponent = (whole + EXPONENT_BIAS) * one
    return mx.maximum(exponent.astype(mx.int32) + mantissa.astype(mx.int32), 0)


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
