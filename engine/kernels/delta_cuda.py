"""A gated-delta layer's recurrence for the few tokens of a step, as two CUDA kernels.

`read` goes from the input projections to the outputs: convolution, SiLU, key and query norms, gates and the delta
rule. The rows of the state do not depend on each other, so a warp keeps one row in registers and walks the tokens in
order; what its head's rows share it computes again, which is cheaper than a launch for each of a dozen operations.
`commit` walks the accepted tokens alone, in the same operations, so a verified block leaves the state that
token-by-token decoding would, to the bit: what is rounded where is written out, as a compiler joins a product and a sum
where it likes to, and not in the same places of two kernels.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import mlx.core as mx

from engine.device import is_cuda
from engine.kernels.warp import WARP, WARP_SUM

ROWS_PER_GROUP = 4
LONGEST = 16  # tokens; longer blocks are faster in chunks

_HEADER = (
    WARP_SUM
    + """
// One channel of the causal convolution at token t, with SiLU. The window is the state, then the block.
template <int K, int T, int C, typename X, typename W>
__device__ inline float convolved(const X* conv, const X* block, const W* weight, long b, int t, int channel) {
  float sum = 0.0f;
  for (int j = 0; j < K; ++j) {
    const int at = t + j - (K - 1);
    const float x = at < 0 ? static_cast<float>(conv[(b * (K - 1) + at + K - 1) * C + channel])
                           : static_cast<float>(block[(b * T + at) * C + channel]);
    sum = fmaf(x, static_cast<float>(weight[channel * K + j]), sum);
  }
  return sum / (1.0f + expf(-sum));
}

template <int Dk, int W>
__device__ inline void normalise(float* x, float scale) {
  float sum = 0.0f;
  for (int i = 0; i < W; ++i) sum = fmaf(x[i], x[i], sum);
  const float factor = scale * rsqrtf(warp_sum(sum) + 1e-6f);
  for (int i = 0; i < W; ++i) x[i] *= factor;
}

__device__ inline float decay(float a, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return expf(-expf(a_log) * softplus);
}
"""
)

_PLACE = """
  constexpr int W = Dk / 32, C = 2 * Hk * Dk + H * Dv;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = thread / 32, lane = thread % 32;
  const int n = blockIdx.y, b = n / H, h = n % H, hk = h / (H / Hk);
  const int q_at = hk * Dk + lane * W, k_at = Hk * Dk + q_at, v_at = 2 * Hk * Dk + h * Dv + row;
  const long place = (static_cast<long>(n) * Dv + row) * Dk + lane * W;
  const float a_log_h = static_cast<float>(a_log[h]), dt_h = static_cast<float>(dt_bias[h]);
  float s[W], key[W];
  for (int i = 0; i < W; ++i) s[i] = state[place + i];
"""

_KEY = """
    for (int i = 0; i < W; ++i) key[i] = convolved<K, T, C>(conv, block, weight, b, t, k_at + i);
    normalise<Dk, W>(key, 1.0f);
"""

_READ = (
    _PLACE
    + """
  float query[W];
  for (int t = L; t < T && lane == 0; ++t) {
    const long token = (static_cast<long>(b) * T + t) * H + h;
    y[token * Dv + row] = static_cast<X>(0.0f);
    u[token * Dv + row] = 0.0f;
  }
  for (int t = 0; t < L; ++t) {
    const long token = (static_cast<long>(b) * T + t) * H + h;
"""
    + _KEY
    + """
    for (int i = 0; i < W; ++i) query[i] = convolved<K, T, C>(conv, block, weight, b, t, q_at + i);
    normalise<Dk, W>(query, rsqrtf(static_cast<float>(Dk)));
    const float value = convolved<K, T, C>(conv, block, weight, b, t, v_at);
    const float g = decay(static_cast<float>(a[token]), a_log_h, dt_h);
    float seen = 0.0f, out = 0.0f;
    for (int i = 0; i < W; ++i) {
      s[i] = __fmul_rn(s[i], g);
      seen = fmaf(s[i], key[i], seen);
    }
    const float beta = 1.0f / (1.0f + expf(-static_cast<float>(beta_logit[token])));
    const float write = beta * (value - warp_sum(seen));
    for (int i = 0; i < W; ++i) {
      s[i] = fmaf(write, key[i], s[i]);
      out = fmaf(s[i], query[i], out);
    }
    out = warp_sum(out);
    if (lane == 0) {
      y[token * Dv + row] = static_cast<X>(out);
      u[token * Dv + row] = write;
    }
  }
"""
)

_COMMIT = (
    _PLACE
    + """
  const int end = kept[b];
  for (int t = 0; t < end; ++t) {
    const long token = (static_cast<long>(b) * T + t) * H + h;
"""
    + _KEY
    + """
    const float g = decay(static_cast<float>(a[token]), a_log_h, dt_h), write = u[token * Dv + row];
    for (int i = 0; i < W; ++i) {
      s[i] = __fmul_rn(s[i], g);
      s[i] = fmaf(write, key[i], s[i]);
    }
  }
  for (int i = 0; i < W; ++i) committed[place + i] = s[i];
  for (int i = h * 32 * Dv + thread; i < (K - 1) * C; i += H * 32 * Dv) {
    const int at = end + i / C;  // row of the window: the state's K - 1, then the block's
    next[static_cast<long>(b) * (K - 1) * C + i] = at < K - 1
        ? conv[(static_cast<long>(b) * (K - 1) + at) * C + i % C]
        : block[(static_cast<long>(b) * T + at - (K - 1)) * C + i % C];
  }
"""
)


@dataclass(frozen=True, slots=True)
class Projected:
    """What a layer's input projections give for a block, with the layer's own small weights.

    Attributes:
        block: [B, T, C], C = 2 Hk Dk + H Dv, before the convolution. a, beta_logit: [B, T, H].
        weight: [C, K, 1]. a_log, dt_bias: [H]. key_heads: Hk.
    """

    block: mx.array
    a: mx.array
    beta_logit: mx.array
    weight: mx.array
    a_log: mx.array
    dt_bias: mx.array
    key_heads: int

    def row(self, place: int) -> "Projected":
        """Those of one row."""
        one = slice(place, place + 1)
        return replace(self, block=self.block[one], a=self.a[one], beta_logit=self.beta_logit[one])


def fits(state: mx.array, length: int) -> bool:
    """Whether arrays live on a CUDA device, and the kernels take a block of this length on a state of this shape."""
    shaped = state.shape[3] % WARP == 0 and state.shape[2] % ROWS_PER_GROUP == 0 and length <= LONGEST
    return shaped and is_cuda()


def read(conv: mx.array, state: mx.array, given: Projected, live: int) -> tuple[mx.array, mx.array]:
    """Outputs of a block of tokens that follow the state, which is left as it is.

    Args:
        conv: [B, K - 1, C]. state: [B, H, Dv, Dk] float32. live: columns that count; the outputs of others are zero.
    Returns:
        y [B, T, H, Dv] in the block's type, and u of the same shape in float32, for `commit`.
    """
    batch, heads, dv, _ = state.shape
    shape = (batch, given.block.shape[1], heads, dv)
    y, u = _kernels()[0](
        inputs=[conv, state, given.block, given.a, given.beta_logit, given.weight, given.a_log, given.dt_bias],
        **_launch(conv, state, given, live),
        output_shapes=[shape, shape],
        output_dtypes=[given.block.dtype, mx.float32],
    )
    return y, u


def commit(conv: mx.array, state: mx.array, given: Projected, u: mx.array, kept: mx.array) -> tuple[mx.array, mx.array]:
    """(conv, state) after the first kept[b] tokens of the block that `read` was given, 1 to T."""
    after, committed = _committer(given.key_heads)(
        conv, state, given.block, given.a, given.weight, given.a_log, given.dt_bias, u, kept
    )
    return after, committed


@cache
def _committer(key_heads: int) -> Any:
    """Traced once for all layers of a shape: making a kernel's call anew costs as much as ten replays."""

    def commit(*arrays: mx.array) -> Any:
        conv, state, block, a, weight, a_log, dt_bias, u, kept = arrays
        given = Projected(block, a, a, weight, a_log, dt_bias, key_heads)
        return _kernels()[1](
            inputs=[conv, state, block, a, weight, a_log, dt_bias, u, kept],
            **_launch(conv, state, given, block.shape[1]),
            output_shapes=[conv.shape, state.shape],
            output_dtypes=[conv.dtype, mx.float32],
        )

    return mx.compile(commit)


@cache
def _kernels() -> tuple[Any, Any]:
    shared = ["a", "beta_logit", "weight", "a_log", "dt_bias"]
    return (
        mx.fast.cuda_kernel("gated_delta_read", ["conv", "state", "block", *shared], ["y", "u"], _READ, header=_HEADER),
        mx.fast.cuda_kernel(
            "gated_delta_commit",
            ["conv", "state", "block", "a", "weight", "a_log", "dt_bias", "u", "kept"],
            ["next", "committed"],
            _COMMIT,
            header=_HEADER,
        ),
    )


def _launch(conv: mx.array, state: mx.array, given: Projected, live: int) -> dict[str, Any]:
    batch, heads, dv, dk = state.shape
    return {
        "template": [
            ("X", given.block.dtype),
            ("T", given.block.shape[1]),
            ("L", live),
            ("K", conv.shape[1] + 1),
            ("H", heads),
            ("Hk", given.key_heads),
            ("Dk", dk),
            ("Dv", dv),
        ],
        "grid": (WARP * dv, batch * heads, 1),
        "threadgroup": (WARP * ROWS_PER_GROUP, 1, 1),
    }
