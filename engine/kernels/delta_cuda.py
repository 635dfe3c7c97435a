"""The gated delta rule for the few tokens of a step, as two CUDA kernels.

The rows of the state do not depend on each other, so a warp keeps one row in registers and walks the tokens in order,
in the very operations of plain decoding: a verified block leaves the state that token-by-token decoding would.
"""

from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx

WARP = 32
LONGEST = 16  # tokens; longer blocks are faster in chunks
ROWS_PER_GROUP = 4

_HEADER = """
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
  return x;
}
"""

_PLACE = """
  constexpr int W = Dk / 32;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = thread / 32, lane = thread % 32;
  const int n = blockIdx.y, b = n / H, h = n % H, hk = h / (H / Hk);
  const long place = (static_cast<long>(n) * Dv + row) * Dk + lane * W;
  float s[W];
  for (int i = 0; i < W; ++i) s[i] = state[place + i];
"""

_READ = (
    _PLACE
    + """
  for (int t = 0; t < T; ++t) {
    const long token = static_cast<long>(b) * T + t;
    const long key = (token * Hk + hk) * Dk + lane * W, value = (token * H + h) * Dv + row;
    const float g = expf(log_g[token * H + h]);
    float seen = 0.0f, out = 0.0f;
    for (int i = 0; i < W; ++i) {
      s[i] *= g;
      seen += s[i] * static_cast<float>(k[key + i]);
    }
    seen = warp_sum(seen);
    const float write = beta[token * H + h] * (static_cast<float>(v[value]) - seen);
    for (int i = 0; i < W; ++i) {
      s[i] += write * static_cast<float>(k[key + i]);
      out += s[i] * static_cast<float>(q[key + i]);
    }
    out = warp_sum(out);
    if (lane == 0) {
      y[value] = static_cast<InT>(out);
      u[value] = write;
    }
  }
"""
)

_COMMIT = (
    _PLACE
    + """
  const int end = kept[b];
  for (int t = 0; t < end; ++t) {
    const long token = static_cast<long>(b) * T + t;
    const long key = (token * Hk + hk) * Dk + lane * W;
    const float g = expf(log_g[token * H + h]), write = u[(token * H + h) * Dv + row];
    for (int i = 0; i < W; ++i) s[i] = s[i] * g + write * static_cast<float>(k[key + i]);
  }
  for (int i = 0; i < W; ++i) committed[place + i] = s[i];
"""
)


class CudaBlock(NamedTuple):
    """What `read` leaves for `commit`: u [B, T, H, Dv] float32, k [B, T, Hk, Dk], log_g [B, T, H] float32."""

    u: mx.array
    k: mx.array
    log_g: mx.array

    def commit(self, state: mx.array, kept: mx.array) -> mx.array:
        """The state after the first kept[b] tokens of the block."""
        (committed,) = _kernels()[1](
            inputs=[state, self.u, self.k, self.log_g, kept.astype(mx.int32)],
            template=_template(state, self.k),
            **_launch(state),
            output_shapes=[state.shape],
            output_dtypes=[mx.float32],
        )
        return committed  # type: ignore[no-any-return]


def read(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array
) -> tuple[mx.array, CudaBlock]:
    """Outputs of one block of tokens; shapes as for `kernels.delta.read`."""
    log_g, beta = log_g.astype(mx.float32), beta.astype(mx.float32)
    y, u = _kernels()[0](
        inputs=[state, q, k, v, log_g, beta],
        template=[*_template(state, k), ("InT", v.dtype)],
        **_launch(state),
        output_shapes=[v.shape, v.shape],
        output_dtypes=[v.dtype, mx.float32],
    )
    return y, CudaBlock(u, k, log_g)


def fits(state: mx.array) -> bool:
    """Whether arrays live on a CUDA device, and the kernels take a state of this shape."""
    shaped = state.shape[3] % WARP == 0 and state.shape[2] % ROWS_PER_GROUP == 0
    return shaped and mx.cuda.is_available() and mx.default_device() == mx.gpu


@cache
def _kernels() -> tuple[Any, Any]:
    return (
        mx.fast.cuda_kernel(
            "gated_delta_read", ["state", "q", "k", "v", "log_g", "beta"], ["y", "u"], _READ, header=_HEADER
        ),
        mx.fast.cuda_kernel(
            "gated_delta_commit", ["state", "u", "k", "log_g", "kept"], ["committed"], _COMMIT, header=_HEADER
        ),
    )


def _template(state: mx.array, k: mx.array) -> list[tuple[str, Any]]:
    _, heads, dv, dk = state.shape
    return [("T", k.shape[1]), ("H", heads), ("Hk", k.shape[2]), ("Dk", dk), ("Dv", dv)]


def _launch(state: mx.array) -> dict[str, tuple[int, int, int]]:
    batch, heads, dv, _ = state.shape
    return {"grid": (WARP * dv, batch * heads, 1), "threadgroup": (WARP * ROWS_PER_GROUP, 1, 1)}
