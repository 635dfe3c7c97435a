"""Gated-delta layers of the Qwen hybrids, cut where the cache decides how to run and roll back; and on the CPU their
MLP and attention, made of `kernels.reading`'s exponentials and of fewer operations."""

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.gated_delta import normalize_qk

from engine.device import is_cpu
from engine.kernels import reading
from engine.kernels.delta_cuda import Projected
from engine.kernels.norm import rms_norm

NORM_EPS = 1e-6
MANY = 32  # tokens at once, more than a step verifies: a prompt is read


@mx.compile
def _convolved(window: mx.array, weight: mx.array) -> mx.array:
    """The causal convolution and its SiLU on the CPU: 0.12 ms for 4 tokens of the 13M model, as MLX's own 0.18."""
    return reading.silu(reading.causal_convolution(window, weight))


@mx.compile
def _gated(gate: mx.array, x: mx.array) -> mx.array:
    """SiLU of the gate times x on the CPU: 0.06 ms for 32 tokens of the MLP of the 13M model, as MLX's own 0.28."""
    return reading.silu(gate) * x


@mx.compile
def _opened(gate: mx.array, x: mx.array) -> mx.array:
    return reading.sigmoid(gate) * x


@mx.compile
def _gates(a: mx.array, b: mx.array, a_log: mx.array, dt_bias: mx.array) -> tuple[mx.array, mx.array]:
    """Log decay and write strength, float32."""
    log_g = -mx.exp(a_log.astype(mx.float32)) * nn.softplus((a + dt_bias).astype(mx.float32))
    return log_g, mx.sigmoid(b.astype(mx.float32))


class Projections(NamedTuple):
    """What a gated-delta layer makes of its inputs: qkv [B, T, C], z [B, T, H Dv], a and b [B, T, H]."""

    qkv: mx.array
    z: mx.array
    a: mx.array
    b: mx.array


class _Recurrent:
    """Mixed into a gated-delta layer's class, which projects the inputs in its own way."""

    def __call__(self: Any, inputs: mx.array, mask: None = None, cache: Any = None) -> mx.array:
        projected = self.project(inputs)
        given = self.given(projected)
        y = cache.step(given)
        return self.finish(_by_operations(self, given, cache) if y is None else y, projected.z)  # type: ignore[no-any-return]

    def given(self: Any, projected: Projections) -> Projected:
        """The recurrence's inputs."""
        qkv, _, a, b = projected
        return Projected(qkv, a, b, self.conv1d.weight, self.A_log, self.dt_bias, self.num_k_heads)

    def finish(self: Any, y: mx.array, z: mx.array) -> mx.array:
        """From the recurrence's outputs [B, T, H, Dv] to the layer's, [B, T, hidden]."""
        z = z.reshape(y.shape)
        y = _gated(z, rms_norm(y, self.norm.weight, self.norm.eps)) if is_cpu() else self.norm(y, z)
        output: mx.array = self.out_proj(y.reshape(*y.shape[:2], -1))
        return output


def _by_operations(layer: Any, given: Projected, cache: Any) -> mx.array:
    """Convolution, norms, gates and recurrence one after another: [B, T, H, Dv]."""
    qkv = given.block
    batch, length, _ = qkv.shape
    window = cache.window(qkv, layer.conv_kernel_size)
    conv = _convolved(window, layer.conv1d.weight) if is_cpu() else nn.silu(layer.conv1d(window))
    q, k, v = mx.split(conv, [layer.key_dim, 2 * layer.key_dim], axis=-1)
    q, k = (x.reshape(batch, length, layer.num_k_heads, layer.head_k_dim) for x in (q, k))
    q, k = normalize_qk(q, k, inv_scale=layer.head_k_dim**-0.5, eps=NORM_EPS)
    v = v.reshape(batch, length, layer.num_v_heads, layer.head_v_dim)
    y: mx.array = cache.scan(q, k, v, *_gates(given.a, given.beta_logit, layer.A_log, layer.dt_bias))
    return y


class GatedDeltaNet(_Recurrent, qwen3_5.GatedDeltaNet):  # type: ignore[misc]
    """qwen3_5 and qwen3_5_moe: four separate input projections."""

    def project(self, inputs: mx.array) -> Projections:
        return Projections(
            self.in_proj_qkv(inputs), self.in_proj_z(inputs), self.in_proj_a(inputs), self.in_proj_b(inputs)
        )


class NextGatedDeltaNet(_Recurrent, qwen3_next.Qwen3NextGatedDeltaNet):  # type: ignore[misc]
    """qwen3_next: projections interleaved by key head."""

    def project(self, inputs: mx.array) -> Projections:
        q, k, v, z, b, a = self.fix_query_key_value_ordering(self.in_proj_qkvz(inputs), self.in_proj_ba(inputs))
        batch, length, _ = inputs.shape
        qkv = mx.concatenate([x.reshape(batch, length, -1) for x in (q, k, v)], axis=-1)
        return Projections(qkv, z.reshape(batch, length, -1), a, b)


class MLP(qwen3_next.Qwen3NextMLP):  # type: ignore[misc]
    """Dense, on the CPU."""

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.down_proj(_gated(self.gate_proj(x), self.up_proj(x)))
        return output


class Attention(qwen3_next.Qwen3NextAttention):  # type: ignore[misc]
    """Full attention, on the CPU. Queries and keys are turned together: MLX makes sines and cosines anew each time."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        batch, length, _ = x.shape
        queries, gate = mx.split(self.q_proj(x).reshape(batch, length, self.num_attention_heads, -1), 2, axis=-1)
        keys, values = (
            y.reshape(batch, length, self.num_key_value_heads, -1) for y in (self.k_proj(x), self.v_proj(x))
        )
        turned = mx.concatenate([self.q_norm(queries), self.k_norm(keys)], axis=2).swapaxes(1, 2)
        queries, keys = mx.split(self.rope(turned, offset=cache.offset), [self.num_attention_heads], axis=1)
        keys, values = cache.update_and_fetch(keys, values.swapaxes(1, 2))
        if length >= MANY and isinstance(mask, str) and not hasattr(cache, "bits"):
            seen = reading.attention(queries, keys, values, self.scale)
        else:
            seen = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self.scale, mask=mask)
        output: mx.array = self.o_proj(_opened(gate, seen.swapaxes(1, 2)).reshape(batch, length, -1))
        return output


def use_our_recurrence(layers: list[Any]) -> list[bool]:
    """Give the linear layers this module's forward, and on the CPU the others; returns which layers are recurrent.

    No parameter moves.
    """
    classes = {qwen3_5.GatedDeltaNet: GatedDeltaNet, qwen3_next.Qwen3NextGatedDeltaNet: NextGatedDeltaNet}
    for layer in layers:
        if layer.is_linear:
            layer.linear_attn.__class__ = classes[type(layer.linear_attn)]
        if is_cpu():
            if not layer.is_linear:
                layer.self_attn.__class__ = Attention
            if type(layer.mlp) is qwen3_next.Qwen3NextMLP:
                layer.mlp.__class__ = MLP
    return [bool(layer.is_linear) for layer in layers]
