"""Attention of a step's few queries, as two CUDA kernels whose outcome for a query depends on what it sees alone.

MLX takes one kernel for one query and others for several, and they round differently: a verified draft would not be,
bit for bit, what decoding it alone gives. Here keys are cut at fixed places, a query's part of each is added up in the
same order however many queries, rows and free slots there are, and the parts are joined in order (Dao et al. 2023,
"Flash-Decoding"). Keys that a query does not see are not read, so the cache is taken whole, without a mask.
"""

from functools import cache
from typing import Any

import mlx.core as mx

from engine.device import is_cuda
from engine.kernels.warp import WARP, WARP_SUM

MOST_QUERIES = 16  # of a row; more are a prompt's
WIDTHS = (64, 128, 256)  # of a head
TYPES = (mx.bfloat16, mx.float16, mx.float32)
WARPS = 8  # of a block; each takes every eighth key
TILE = 4  # queries of a block, which share what it reads
SPLIT = 512  # keys of a block
TOLERANCE = 2e-2  # of the largest output, against MLX's own kernels, which round more

_HEADER = (
    WARP_SUM
    + """
template <typename X, int W> struct alignas(sizeof(X) * W) Piece { X x[W]; };
"""
)

_READ = """
  constexpr int W = D / 32;  // numbers of a lane
  const int Hk = k_shape[1], capacity = k_shape[2], T = q_shape[2], M = q_shape[1] / Hk * T, splits = gridDim.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x, first = blockIdx.y * TILE, n = blockIdx.z, held = offset[n / Hk];
  float query[TILE][W], sums[TILE][W], top[TILE], total[TILE];
  int last[TILE];  // the last key that a query sees
  #pragma unroll
  for (int j = 0; j < TILE; ++j) {
    const int m = min(first + j, M - 1);
    const auto piece = *reinterpret_cast<const Piece<X, W>*>(q + (static_cast<long>(n) * M + m) * D + lane * W);
    last[j] = held + m % T;
    top[j] = -1e30f;
    total[j] = 0.0f;
    #pragma unroll
    for (int i = 0; i < W; ++i) {
      query[j][i] = static_cast<float>(piece.x[i]) * scale[0];
      sums[j][i] = 0.0f;
    }
  }

  const int end = min(min((split + 1) * SPLIT, held + T), capacity);
  for (int at = split * SPLIT + warp; at < end; at += WARPS) {
    const long place = (static_cast<long>(n) * capacity + at) * D + lane * W;
    const auto key = *reinterpret_cast<const Piece<X, W>*>(k + place);
    const auto value = *reinterpret_cast<const Piece<X, W>*>(v + place);
    #pragma unroll
    for (int j = 0; j < TILE; ++j) {
      float score = 0.0f;
      #pragma unroll
      for (int i = 0; i < W; ++i) score += query[j][i] * static_cast<float>(key.x[i]);
      score = warp_sum(score);
      if (at > last[j]) continue;
      const float higher = fmaxf(top[j], score), old = exp2f(top[j] - higher), share = exp2f(score - higher);
      top[j] = higher;
      total[j] = total[j] * old + share;
      #pragma unroll
      for (int i = 0; i < W; ++i) sums[j][i] = sums[j][i] * old + share * static_cast<float>(value.x[i]);
    }
  }

  __shared__ float tops[WARPS][TILE], totals[WARPS][TILE], shared[WARPS][TILE][D];
  #pragma unroll
  for (int j = 0; j < TILE; ++j) {
    if (lane == 0) { tops[warp][j] = top[j]; totals[warp][j] = total[j]; }
    #pragma unroll
    for (int i = 0; i < W; ++i) shared[warp][j][lane * W + i] = sums[j][i];
  }
  __syncthreads();
  for (int place = threadIdx.x; place < TILE * D; place += WARPS * 32) {
    const int j = place / D, d = place % D;
    if (first + j >= M) break;
    float highest = tops[0][j], sum = 0.0f, all = 0.0f;
    for (int w = 1; w < WARPS; ++w) highest = fmaxf(highest, tops[w][j]);
    for (int w = 0; w < WARPS; ++w) {
      const float share = exp2f(tops[w][j] - highest);
      sum += share * totals[w][j];
      all += share * shared[w][j][d];
    }
    const long part = (static_cast<long>(n) * M + first + j) * splits + split;
    parts[part * D + d] = all;
    if (d == 0) { ends[2 * part] = highest; ends[2 * part + 1] = sum; }
  }
"""

_JOIN = """
  const int splits = parts_shape[2], d = threadIdx.x;
  const long query = blockIdx.x;
  float highest = ends[2 * query * splits], sum = 0.0f, all = 0.0f;
  for (int i = 1; i < splits; ++i) highest = fmaxf(highest, ends[2 * (query * splits + i)]);
  for (int i = 0; i < splits; ++i) {
    const long part = query * splits + i;
    const float share = exp2f(ends[2 * part] - highest);
    sum += share * ends[2 * part + 1];
    all += share * parts[part * D + d];
  }
  out[query * D + d] = static_cast<X>(all / sum);
"""

LOG2_E = 1.4426950408889634


def fits(queries: mx.array, keys: mx.array) -> bool:
    """Whether arrays live on a CUDA device, and the kernels take heads of this kind."""
    width, dtype = queries.shape[3], queries.dtype
    few = queries.shape[2] <= MOST_QUERIES and width in WIDTHS and dtype in TYPES and keys.dtype == dtype
    return few and is_cuda() and _agrees(dtype, width)


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, offset: mx.array, limit: int, scale: float
) -> mx.array:
    """Causal attention of the T tokens that follow offset[b] others, over all slots of a cache.

    Args:
        queries: [B, H, T, D]. keys, values: [B, Hk, capacity, D], those of the T tokens written already.
        offset: [B] int32. limit: no slot from here on is live.
    Returns:
        [B, H, T, D] in the queries' type.
    """
    result: mx.array = _traced(-(-limit // SPLIT), scale)(queries, keys, values, offset)
    return result


@cache
def _traced(splits: int, scale: float) -> Any:
    """Traced once for a shape: making a kernel's call anew costs the host more than replaying it."""
    factor = mx.array([scale * LOG2_E], dtype=mx.float32)
    mx.eval(factor)

    def call(queries: mx.array, keys: mx.array, values: mx.array, offset: mx.array) -> Any:
        batch, heads, length, width = queries.shape
        groups, shared = batch * keys.shape[1], heads // keys.shape[1] * length
        read, join = _kernels()
        parts, ends = read(
            inputs=[queries, keys, values, offset, factor],
            template=[("X", queries.dtype), ("D", width), ("TILE", TILE), ("WARPS", WARPS), ("SPLIT", SPLIT)],
            grid=(splits * WARPS * WARP, -(-shared // TILE), groups),
            threadgroup=(WARPS * WARP, 1, 1),
            output_shapes=[(groups, shared, splits, width), (groups, shared, splits, 2)],
            output_dtypes=[mx.float32, mx.float32],
        )
        return join(
            inputs=[parts, ends],
            template=[("X", queries.dtype), ("D", width)],
            grid=(groups * shared * width, 1, 1),
            threadgroup=(width, 1, 1),
            output_shapes=[queries.shape],
            output_dtypes=[queries.dtype],
        )[0]

    return mx.compile(call)


@cache
def _kernels() -> tuple[Any, Any]:
    taken = ["q", "k", "v", "offset", "scale"]
    return (
        mx.fast.cuda_kernel("few_queries", taken, ["parts", "ends"], _READ, header=_HEADER),
        mx.fast.cuda_kernel("few_queries_join", ["parts", "ends"], ["out"], _JOIN),
    )


@cache
def _agrees(dtype: mx.Dtype, width: int) -> bool:
    """Whether the kernels give what MLX gives on this machine, tried once for each kind of head."""
    shape, limit, offset = (2, 2, 2 * SPLIT, width), SPLIT + 40, mx.array([SPLIT + 30, 5])
    keys, values = (mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype) for seed in (1, 2))
    queries = mx.random.normal((2, 6, 3, width), key=mx.random.key(3)).astype(dtype)
    mask = mx.arange(limit) <= (offset[:, None] + mx.arange(3))[:, None, :, None]
    expected = mx.fast.scaled_dot_product_attention(
        queries, keys[:, :, :limit], values[:, :, :limit], scale=width**-0.5, mask=mask
    )
    found = attention(queries, keys, values, offset, limit, width**-0.5)
    return bool((mx.abs(found - expected).max() <= TOLERANCE * mx.abs(expected).max()).item())
