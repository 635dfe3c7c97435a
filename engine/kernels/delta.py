"""The gated delta rule in chunked plain ops, the same code on CPU, CUDA and Metal.

Per head, with state S [Dv, Dk], decay g in (0, 1], write strength beta and unit-norm key k (Yang et al. 2024,
"Gated Delta Networks", arXiv 2412.06464):

    S_t = g_t S_(t-1) + u_t k_t^T,   u_t = beta_t (v_t - g_t S_(t-1) k_t),   y_t = S_t q_t

A chunk of C tokens solves its u together (the WY form): u = (I + L)^-1 beta (v - exp(G) S k), where G is the running
sum of log g and L the strictly lower triangle of beta_i exp(G_i - G_j) k_i.k_j.

Because u_j depends only on tokens up to j, a block in which a draft was refused needs no second pass: the state
after the first n tokens is made from the first n columns of u, and later columns get weight zero (`Block.commit`).
"""

from typing import NamedTuple

import mlx.core as mx

from engine.device import is_cpu
from engine.kernels import reading

PREFILL_CHUNK = 32
BASE = 8  # widest triangle that is inverted by its power series; its terms stay below C(8, 4) = 70


class Block(NamedTuple):
    """What `read` leaves for `commit`: the T solved columns of a block. Heads are value heads, arrays are float32."""

    u: mx.array  # [B, H, T, Dv]
    k: mx.array  # [B, H, T, Dk]
    log_decay: mx.array  # [B, H, T], running sum of log g

    def commit(self, state: mx.array, kept: mx.array) -> mx.array:
        """The state after the first kept[b] tokens, 1 to T; later columns get weight zero.

        `state` is the one that `read` was given. kept: [B] int32.
        """
        committed: mx.array = _commit(state, *self, kept)
        return committed


@mx.compile
def _commit(state: mx.array, u: mx.array, k: mx.array, log_decay: mx.array, kept: mx.array) -> mx.array:
    last = mx.take_along_axis(log_decay, (kept - 1)[:, None, None], axis=-1)
    if u.shape[2] == 1:
        return mx.exp(last)[..., None] * state + u.swapaxes(-1, -2) @ k
    kept_columns = mx.arange(u.shape[2]) < kept[:, None, None]
    weight = mx.where(kept_columns, mx.exp(mx.minimum(last - log_decay, 0.0)), 0.0)
    return mx.exp(last)[..., None] * state + (weight[..., None] * u).swapaxes(-1, -2) @ k


def read(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array
) -> tuple[mx.array, Block]:
    """Outputs of one block of tokens that follow `state`, which is left as it is.

    Args:
        state: [B, H, Dv, Dk] float32. q, k: [B, T, Hk, Dk], normalised and scaled, H a multiple of Hk.
        v: [B, T, H, Dv]. log_g: [B, T, H] float32, at most 0. beta: [B, T, H].
    Returns:
        y [B, T, H, Dv] in v's dtype, and the Block.
    """
    y, *block = _read(state, q, k, v, log_g, beta)
    return y, Block(*block)


@mx.compile
def _read(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    length, heads = v.shape[1], v.shape[2]
    q, k = (_heads_first(x, heads) for x in (q, k))
    keys_and_queries = mx.concatenate([k, q], axis=2)
    from_state = keys_and_queries @ state.swapaxes(-1, -2)
    log_decay, beta = (_time_last(x) for x in (log_g, beta))
    if length > 1:
        log_decay = mx.cumsum(log_decay, axis=-1)
    decay = mx.exp(log_decay)[..., None]
    inner = keys_and_queries @ k.swapaxes(-1, -2)
    u = beta[..., None] * (_heads_first(v, heads) - decay * from_state[:, :, :length])
    attend = inner[:, :, length:]
    if length > 1:
        relative = _relative_decay(log_decay)
        u = unit_lower_inverse(mx.tril(beta[..., None] * relative * inner[:, :, :length], -1)) @ u
        attend = relative * attend
    y = decay * from_state[:, :, length:] + attend @ u
    return y.swapaxes(1, 2).astype(v.dtype), u, k, log_decay


def prefill(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array
) -> tuple[mx.array, mx.array]:
    """Outputs for T tokens and the state after them; shapes as for `read`.

    What a chunk needs of its own tokens is made for all chunks at once (Yang et al. 2024, "Parallelizing Linear
    Transformers with the Delta Rule", arXiv 2406.06484): u = fresh - known S^T, of which only S goes from one chunk to
    the next.
    """
    (batch, length, heads, dim_v), dtype = v.shape, v.dtype
    chunks = -(-length // PREFILL_CHUNK)
    size = -(-length // chunks)

    def cut(x: mx.array) -> mx.array:
        """[B, T, h, ...] -> [B, H, chunks, size, ...] float32; tokens that fill up are zero: they change no state."""
        x = x.astype(mx.float32)
        if chunks * size > length:
            x = mx.pad(x, [(0, 0), (0, chunks * size - length), *[(0, 0)] * (x.ndim - 2)])
        x = mx.contiguous(mx.moveaxis(x.reshape(batch, chunks, size, *x.shape[2:]), 3, 1))
        return x if x.shape[1] == heads else mx.repeat(x, heads // x.shape[1], axis=1)

    q, k, v, log_decay, beta = (cut(x) for x in (q, k, v, log_g, beta))
    exp = reading.exp if is_cpu() else mx.exp
    log_decay = mx.cumsum(log_decay, axis=-1)
    decay, beta = exp(log_decay)[..., None], beta[..., None]
    lower = mx.tril(mx.ones((size, size)))
    relative = lower * exp(lower * (log_decay[..., :, None] - log_decay[..., None, :]))
    attend = relative * (q @ k.swapaxes(-1, -2))
    solve = unit_lower_inverse(mx.tril(beta * relative * (k @ k.swapaxes(-1, -2)), -1))
    fresh, known = mx.split(solve @ mx.concatenate([beta * v, beta * decay * k], axis=-1), [dim_v], axis=-1)
    last = log_decay[..., -1:]
    kept, kept_k = exp(last)[..., None], exp(last - log_decay)[..., None] * k
    states, solved = [], []
    for chunk in range(chunks):
        u = mx.addmm(fresh[:, :, chunk], known[:, :, chunk], state.swapaxes(-1, -2), alpha=-1.0)
        states.append(state)
        solved.append(u)
        state = mx.addmm(kept[:, :, chunk] * state, u.swapaxes(-1, -2), kept_k[:, :, chunk])
    y = mx.addmm(attend @ mx.stack(solved, axis=2), decay * q, mx.stack(states, axis=2).swapaxes(-1, -2))
    return mx.moveaxis(y, 1, 3).reshape(batch, -1, heads, dim_v)[:, :length].astype(dtype), state


def unit_lower_inverse(lower: mx.array) -> mx.array:
    """(I + L)^-1 for strictly lower triangular L [..., C, C].

    Up to BASE rows by the power series (I - L)(I + L^2)(I + L^4), exact since L^C = 0; wider triangles by halves,
    since the series' terms grow like C(C, C/2) and overflow on repetitive text.
    """
    size = lower.shape[-1]
    if size > BASE:
        half = max(BASE, size // 2)
        top = unit_lower_inverse(lower[..., :half, :half])
        bottom = unit_lower_inverse(lower[..., half:, half:])
        corner = -(bottom @ lower[..., half:, :half] @ top)
        zeros = mx.zeros((*lower.shape[:-2], half, size - half), dtype=lower.dtype)
        return mx.concatenate(
            [mx.concatenate([top, zeros], axis=-1), mx.concatenate([corner, bottom], axis=-1)], axis=-2
        )
    inverse = mx.eye(size, dtype=lower.dtype) - lower
    power, reach = lower, 2
    while reach < size:
        power = power @ power
        inverse = inverse + inverse @ power
        reach *= 2
    return inverse


def _relative_decay(log_decay: mx.array) -> mx.array:
    """exp(G_i - G_j) for j <= i, else 0; [B, H, T] -> [B, H, T, T]."""
    difference = log_decay[..., :, None] - log_decay[..., None, :]
    return mx.tril(mx.exp(mx.minimum(difference, 0.0)))


def _heads_first(x: mx.array, heads: int) -> mx.array:
    """[B, T, h, D] -> [B, heads, T, D] float32, repeating grouped heads."""
    x = x.swapaxes(1, 2).astype(mx.float32)
    return x if x.shape[1] == heads else mx.repeat(x, heads // x.shape[1], axis=1)


def _time_last(x: mx.array) -> mx.array:
    """[B, T, H] -> [B, H, T] float32."""
    return x.swapaxes(1, 2).astype(mx.float32)
