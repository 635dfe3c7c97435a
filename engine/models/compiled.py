"""Decoder layers of the Qwen hybrids whose step is traced once for a shape and then replayed, on CUDA.

A step of a 9B model is about a thousand operations, and making their graph in Python took longer than running them. A
trace costs about as much as one step; it holds a layer's weights, so it is to be made when they are final. What a
cache decides (where keys go, how far attention looks) stays outside: it changes every few tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import scaled_dot_product_attention

from engine.caches.kv import KVCache
from engine.caches.recurrent import RecurrentCache
from engine.kernels import attention_cuda, delta_cuda
from engine.models.qwen import Projections

LONGEST = delta_cuda.LONGEST  # tokens of a block; longer ones are read once, and would be traced for nothing


class _Compiled:
    """Mixed into a decoder layer's class; the layer's own parameters and modules are used."""

    is_linear: bool
    linear_attn: Any
    self_attn: Any
    input_layernorm: Any
    post_attention_layernorm: Any
    mlp: Any
    _traces: dict[Any, Callable[..., Any]]

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        short = cache is not None and not cache.clock.reading and x.shape[1] <= LONGEST
        if short and isinstance(cache, RecurrentCache) and cache.fuses(x.shape[1]):
            return self._recurrent(x, cache)
        if short and isinstance(cache, KVCache):
            return self._attending(x, mask, cache)
        output: mx.array = super().__call__(x, mask, cache)  # type: ignore[misc]  # of the class it is mixed into
        return output

    def _recurrent(self, x: mx.array, cache: RecurrentCache) -> mx.array:
        live = cache.live(x.shape[1])
        output, qkv, z, a, b, u = self._traced(("recurrent", live), partial(self._read, live))(
            x, cache.conv, cache.state
        )
        cache.hold(self.linear_attn.given(Projections(qkv, z, a, b)), u)
        return output  # type: ignore[no-any-return]

    def _read(self, live: int, x: mx.array, conv: mx.array, state: mx.array) -> tuple[mx.array, ...]:
        attention = self.linear_attn
        projected = attention.project(self.input_layernorm(x))
        y, u = delta_cuda.read(conv, state, attention.given(projected), live)
        return self._fed(x, attention.finish(y, projected.z)), *projected, u

    def _attending(self, x: mx.array, mask: Any, cache: KVCache) -> mx.array:
        queries, keys, values, gate = self._traced("before", self._before)(x, cache.offset)
        held = cache.update_and_fetch(keys, values)
        scale = self.self_attn.scale
        if cache.packing is None and attention_cuda.fits(queries, keys):
            limit = cache.clock.limit(x.shape[1])
            seen = attention_cuda.attention(queries, cache.keys[0], cache.values[0], cache.offset, limit, scale)
        else:
            seen = scaled_dot_product_attention(queries, *held, cache=cache, scale=scale, mask=mask)
        output: mx.array = self._traced("after", self._after)(x, seen, gate)
        return output

    def _before(self, x: mx.array, offset: mx.array) -> tuple[mx.array, ...]:
        """Queries, keys and values [B, heads, T, dim], turned by their places; and the output's gate [B, T, width]."""
        attention, (batch, length, _) = self.self_attn, x.shape
        normed = self.input_layernorm(x)
        both = attention.q_proj(normed).reshape(batch, length, attention.num_attention_heads, -1)
        queries, gate = mx.split(both, 2, axis=-1)
        keys, values = (
            y.reshape(batch, length, attention.num_key_value_heads, -1)
            for y in (attention.k_proj(normed), attention.v_proj(normed))
        )
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
        queries, keys = (attention.rope(y.swapaxes(1, 2), offset=offset) for y in (queries, keys))
        return queries, keys, values.swapaxes(1, 2), gate.reshape(batch, length, -1)

    def _after(self, x: mx.array, seen: mx.array, gate: mx.array) -> mx.array:
        heads_last = seen.swapaxes(1, 2).reshape(gate.shape)
        return self._fed(x, self.self_attn.o_proj(heads_last * mx.sigmoid(gate)))

    def _fed(self, x: mx.array, attended: mx.array) -> mx.array:
        h = x + attended
        output: mx.array = h + self.mlp(self.post_attention_layernorm(h))
        return output

    def _traced(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        if name not in self._traces:
            self._traces[name] = mx.compile(function)
        return self._traces[name]


class _Layer(_Compiled, qwen3_5.DecoderLayer):  # type: ignore[misc]  # mlx-lm has no types
    pass


class _NextLayer(_Compiled, qwen3_next.Qwen3NextDecoderLayer):  # type: ignore[misc]
    pass


def compile_steps(layers: list[Any]) -> None:
    """Let the layers that `use_our_recurrence` has prepared be traced; layers of other kinds stay as they are.

    No parameter moves, and none may change afterwards.
    """
    classes = {qwen3_5.DecoderLayer: _Layer, qwen3_next.Qwen3NextDecoderLayer: _NextLayer}
    for layer in layers:
        if type(layer) in classes:
            layer.__class__ = classes[type(layer)]
            layer._traces = {}
