"""On a CUDA device a query's attention is the same, bit for bit, whatever is computed beside it."""

from itertools import product

import mlx.core as mx
import pytest

from engine.device import is_cuda
from engine.kernels import attention_cuda
from engine.kernels.attention_cuda import SPLIT, attention

pytestmark = pytest.mark.skipif(not is_cuda(), reason="the kernels are CUDA's")
KINDS = list(product((64, 128, 256), (mx.bfloat16, mx.float16, mx.float32)))


def cached(width: int, dtype: mx.Dtype, rows: int = 2, capacity: int = 4 * SPLIT) -> tuple[mx.array, mx.array]:
    shape = (rows, 2, capacity, width)
    keys, values = (mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype) for seed in (1, 2))
    return keys, values


def asked(width: int, dtype: mx.Dtype, rows: int = 2, length: int = 5) -> mx.array:
    return mx.random.normal((rows, 8, length, width), key=mx.random.key(3)).astype(dtype)


@pytest.mark.parametrize(("width", "dtype"), KINDS)
def test_it_is_what_mlx_gives(width: int, dtype: mx.Dtype) -> None:
    keys, values = cached(width, dtype)
    queries = asked(width, dtype)
    offset = mx.array([0, 2 * SPLIT + 100])
    limit = 3 * SPLIT
    mask = mx.arange(limit) <= (offset[:, None] + mx.arange(5))[:, None, :, None]
    full = [x.astype(mx.float32) for x in (queries, keys[:, :, :limit], values[:, :, :limit])]
    expected = mx.fast.scaled_dot_product_attention(*full, scale=0.1, mask=mask)
    assert attention_cuda.fits(queries, keys)
    found = attention(queries, keys, values, offset, limit, 0.1).astype(mx.float32)
    assert float(mx.abs(found - expected).max()) < 3e-3 * (1 if dtype == mx.float32 else 10)


@pytest.mark.parametrize(("width", "dtype"), KINDS)
def test_a_query_gives_the_same_alone_and_among_others(width: int, dtype: mx.Dtype) -> None:
    keys, values = cached(width, dtype)
    queries, offset = asked(width, dtype), mx.array([3, 2 * SPLIT - 2])  # the second row's block crosses a cut
    together = attention(queries, keys, values, offset, 4 * SPLIT, 0.1)
    for row, place in product(range(2), range(5)):
        one = slice(row, row + 1)
        at = int(offset[row]) + place
        alone = attention(queries[one, :, place : place + 1], keys[one], values[one], mx.array([at]), at + 1, 0.1)
        assert mx.array_equal(alone[0, :, 0], together[row, :, place])
