"""A product of few rows with a quantised or half-precision weight, as one CUDA kernel that reads the weight once.

MLX's own kernel for 2 to 7 rows of a quantised product reads the weight once for each row. Here a warp holds a tile of
16 outputs by 64 inputs as it lies in memory, makes half-precision integers of it in registers, and lets the tensor
cores multiply it with 8 rows at a time (mma.m16n8k16; Frantar et al. 2024, "MARLIN", arXiv 2408.11743). Scales and
biases are applied to the sums of a group, in float32, so no weight is rounded. A row's sum is added up in the same
order however many rows there are: a draft's outcome does not depend on what is verified beside it.

On an H200, microseconds of a product with 4 rows, the kernel alone, 4-bit and bf16: [12288, 4096] 16.5 and 26.5,
[4096, 12288] 16.2 and 26.7, [4096, 4096] 6.7 and 11.1; of one row 16.2, 15.6 and 6.7 in 4 bits. Tiles of 32 outputs
and reading further ahead were slower.
"""

from functools import cache
from typing import Any

import mlx.core as mx

from engine.device import is_cuda
from engine.kernels.warp import WARP

TILE = 16  # outputs of a tensor core's product
STEP = 64  # inputs that a warp takes at a time
MOST_ROWS = 16  # two products of a tensor core side by side
MANY = 8192  # outputs above which there are warps enough; up to it, more of them share the inputs of a tile
TYPES = (mx.bfloat16, mx.float16)

_HEADER = """
#define MULTIPLY_ADD(TYPE)                                                                       \\
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                             \\
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                    \\
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                           \\
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <typename X> struct Half;

template <> struct Half<__nv_bfloat16> {
  static constexpr unsigned ONES = 0x3F803F80u, MAGIC = 0x43004300u;  // two 1.0; two 128.0, whose last bit is 1
  static constexpr float OFFSET = 128.0f;
  __device__ static inline void product(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    MULTIPLY_ADD("bf16");
  }
  __device__ static inline unsigned bytes(unsigned word, int low, int high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn((float)((word >> low) & 0xFFu), (float)((word >> high) & 0xFFu));
    return *reinterpret_cast<unsigned*>(&pair);
  }
};

template <> struct Half<__half> {
  static constexpr unsigned ONES = 0x3C003C00u, MAGIC = 0x64006400u;  // two 1.0; two 1024.0
  static constexpr float OFFSET = 1024.0f;
  __device__ static inline void product(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    MULTIPLY_ADD("f16");
  }
  __device__ static inline unsigned bytes(unsigned word, int low, int high) {
    __half2 pair = __floats2half2_rn((float)((word >> low) & 0xFFu), (float)((word >> high) & 0xFFu));
    return *reinterpret_cast<unsigned*>(&pair);
  }
};

// WORDS registers of weights, which nobody reads again.
template <int WORDS>
__device__ inline void fetch(const unsigned* from, unsigned* to) {
  if (WORDS == 2) {
    const uint2 two = __ldcs(reinterpret_cast<const uint2*>(from));
    to[0] = two.x; to[1] = two.y;
    return;
  }
  #pragma unroll
  for (int i = 0; i + 4 <= WORDS; i += 4) {
    const uint4 four = __ldcs(reinterpret_cast<const uint4*>(from + i));
    to[i] = four.x; to[i + 1] = four.y; to[i + 2] = four.z; to[i + 3] = four.w;
  }
}

// Sixteen inputs of a lane as pairs of halves, pair i of the order in which `unpacked` gives the weights.
template <int BITS>
__device__ inline void paired(const uint4* from, unsigned* x) {
  const uint4 first = from[0], second = from[1];
  const unsigned raw[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  #pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (BITS != 4) { x[i] = raw[i]; continue; }
    const int word = i / 4 * 4, half = i % 4;  // nibbles lie four apart in a register: 0 and 4, 1 and 5, ...
    x[i] = __byte_perm(raw[word + half / 2], raw[word + half / 2 + 2], half % 2 ? 0x7632 : 0x5410);
  }
}

// Pair i of a lane's sixteen weights, as halves; 4-bit ones are OFFSET too large.
template <typename X, int BITS>
__device__ inline unsigned unpacked(const unsigned* w, int i) {
  if (BITS == 4) return ((w[i / 4] >> (4 * (i % 4))) & 0x000F000Fu) | Half<X>::MAGIC;
  if (BITS == 8) return Half<X>::bytes(w[i / 2], 16 * (i % 2), 16 * (i % 2) + 8);
  return w[i];
}
"""

_SOURCE = """
  constexpr int WORDS = BITS / 2;  // registers of a lane's sixteen weights
  const int M = x_shape[0], K = x_shape[1], N = w_shape[0];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane / 4, quarter = lane % 4;
  const int first = blockIdx.x * 16;
  const long upper = min(first + place, N - 1), lower = min(first + place + 8, N - 1);  // the rows that a lane reads
  const long row_words = static_cast<long>(K) * BITS / 32;
  const unsigned* weight = reinterpret_cast<const unsigned*>(w) + quarter * WORDS;
  float sums[C][4];
  #pragma unroll
  for (int i = 0; i < C * 4; ++i) (&sums[0][0])[i] = 0.0f;

  for (int k = warp * 64; k < K; k += WARPS * 64) {
    unsigned raw[2][WORDS];
    fetch<WORDS>(weight + upper * row_words + static_cast<long>(k) * BITS / 32, raw[0]);
    fetch<WORDS>(weight + lower * row_words + static_cast<long>(k) * BITS / 32, raw[1]);
    float scale[2], bias[2];
    if (BITS != 16) {
      const long groups = K / GROUP, group = k / GROUP;
      scale[0] = static_cast<float>(scales[upper * groups + group]);
      scale[1] = static_cast<float>(scales[lower * groups + group]);
      bias[0] = static_cast<float>(biases[upper * groups + group]);
      bias[1] = static_cast<float>(biases[lower * groups + group]);
      if (BITS == 4) { bias[0] -= Half<X>::OFFSET * scale[0]; bias[1] -= Half<X>::OFFSET * scale[1]; }
    }
    unsigned a[4][4];
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][0] = unpacked<X, BITS>(raw[0], 2 * s);
      a[s][1] = unpacked<X, BITS>(raw[1], 2 * s);
      a[s][2] = unpacked<X, BITS>(raw[0], 2 * s + 1);
      a[s][3] = unpacked<X, BITS>(raw[1], 2 * s + 1);
    }
    #pragma unroll
    for (int c = 0; c < C; ++c) {
      unsigned in[8] = {0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u};
      const int m = 8 * c + place;
      if (m < M) paired<BITS>(reinterpret_cast<const uint4*>(x + static_cast<long>(m) * K + k + 16 * quarter), in);
      if (BITS == 16) {
        #pragma unroll
        for (int s = 0; s < 4; ++s) Half<X>::product(sums[c], a[s], in[2 * s], in[2 * s + 1]);
      } else {
        const unsigned ones[4] = {Half<X>::ONES, Half<X>::ONES, Half<X>::ONES, Half<X>::ONES};
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f}, group[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        #pragma unroll
        for (int s = 0; s < 4; ++s) {
          Half<X>::product(total, ones, in[2 * s], in[2 * s + 1]);
          Half<X>::product(group, a[s], in[2 * s], in[2 * s + 1]);
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) sums[c][i] += scale[i / 2] * group[i] + bias[i / 2] * total[i % 2];
      }
    }
  }

  __shared__ float shared[WARPS][8 * C][16];  // each warp's share of the inputs
  #pragma unroll
  for (int c = 0; c < C; ++c)
    #pragma unroll
    for (int i = 0; i < 4; ++i) shared[warp][8 * c + 2 * quarter + i % 2][8 * (i / 2) + place] = sums[c][i];
  __syncthreads();
  for (int at = threadIdx.x; at < 8 * C * 16; at += WARPS * 32) {
    const int m = at / 16, n = at % 16;
    float all = 0.0f;
    #pragma unroll
    for (int i = 0; i < WARPS; ++i) all += shared[i][m][n];
    if (m < M && first + n < N) out[static_cast<long>(m) * N + first + n] = static_cast<X>(all);
  }
"""


def fits(columns: int, dtype: mx.Dtype, group: int, bits: int, mode: str) -> bool:
    """Whether arrays live on a CUDA device, and the kernel takes weights of this kind. 16 bits are a dense weight."""
    kind = bits == 16 or (mode == "affine" and bits in (4, 8) and group % STEP == 0)
    return kind and columns % STEP == 0 and dtype in TYPES and is_cuda()


def product(
    x: mx.array, w: mx.array, scales: mx.array | None, biases: mx.array | None, group: int, bits: int
) -> mx.array:
    """x [M, K] times the transpose of a weight [N, K], in x's type: [M, N], for M up to MOST_ROWS.

    `scales` and `biases` are those of a quantised weight; None where the weight is dense, in x's type.
    """
    result: mx.array = _traced(group, bits)(x, w, x if scales is None else scales, x if biases is None else biases)
    return result


@cache
def _traced(group: int, bits: int) -> Any:
    """Traced once for a shape: making a kernel's call anew takes the host twice as long as MLX's own products."""

    def call(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array) -> Any:
        (rows, _), outputs = x.shape, w.shape[0]
        warps = 8 if bits == 16 else 16 if outputs <= MANY else 4
        return _kernel()(
            inputs=[x, w, scales, biases],
            template=[("X", x.dtype), ("BITS", bits), ("GROUP", group), ("C", -(-rows // 8)), ("WARPS", warps)],
            grid=(-(-outputs // TILE) * warps * WARP, 1, 1),
            threadgroup=(warps * WARP, 1, 1),
            output_shapes=[(rows, outputs)],
            output_dtypes=[x.dtype],
        )[0]

    return mx.compile(call)


@cache
def _kernel() -> Any:
    return mx.fast.cuda_kernel("few_rows", ["x", "w", "scales", "biases"], ["out"], _SOURCE, header=_HEADER)
