"""What our CUDA kernels have in common: how many threads go together, and their sum."""

WARP = 32

WARP_SUM = """
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
  return x;
}
"""
