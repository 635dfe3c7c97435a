"""Qwen3 as Qwen3-Embedding and Qwen3-Reranker run it, on mlx-lm's own modules (Zhang et al. 2025, arXiv 2506.05176)."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3

from engine.device import is_cpu
from engine.kernels import reading


class Layer(qwen3.TransformerBlock):  # type: ignore[misc]  # mlx-lm has no types
    """One layer, told in the two parts in which long inputs are read. No parameter moves."""

    def project(self, hidden: mx.array, start: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a block of tokens from position `start` on: [B, t, H] -> [B, heads, t, d] twice."""
        attention = self.self_attn
        x = self.input_layernorm(hidden)
        keys = attention.k_norm(_heads(attention.k_proj(x), attention.n_kv_heads)).swapaxes(1, 2)
        values = _heads(attention.v_proj(x), attention.n_kv_heads).swapaxes(1, 2)
        return attention.rope(keys, offset=start), values

    def attend(self, hidden: mx.array, keys: mx.array, values: mx.array, start: int, mask: None) -> mx.array:
        """The layer's output for a block of tokens, each of which sees those up to itself: [B, t, H].

        Padding is behind an input, so no token of it sees any.
        """
        attention, end = self.self_attn, start + hidden.shape[1]
        queries = attention.q_norm(_heads(attention.q_proj(self.input_layernorm(hidden)), attention.n_heads))
        queries = attention.rope(queries.swapaxes(1, 2), offset=start)
        keys, values = keys[:, :, :end], values[:, :, :end]
        if is_cpu():
            seen = reading.attention(queries, keys, values, attention.scale)
        else:
            seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=attention.scale, mask="causal")
        hidden = hidden + attention.o_proj(seen.swapaxes(1, 2).reshape(*hidden.shape[:2], -1))
        output: mx.array = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Qwen3(qwen3.Model):  # type: ignore[misc]
    """The trunk, with its lm_head where the checkpoint has one."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        for layer in self.layers:
            layer.__class__ = Layer

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Names as mlx-lm has them: Qwen3-Embedding is published without its `model.`."""
        if "embed_tokens.weight" in weights:
            weights = {f"model.{name}": value for name, value in weights.items()}
        if "lm_head.weight" not in weights:
            self.pop("lm_head", None)
        cleaned: dict[str, mx.array] = super().sanitize(weights)
        return cleaned

    def embed(self, ids: mx.array, types: mx.array) -> mx.array:
        """[B, T] token ids -> [B, T, H]."""
        hidden: mx.array = self.model.embed_tokens(ids)
        return hidden

    def mask(self, lengths: Sequence[int]) -> None:
        return None

    def finish(self, hidden: mx.array) -> mx.array:
        """The final norm."""
        normed: mx.array = self.model.norm(hidden)
        return normed

    def scores(self, hidden: mx.array, lengths: Sequence[int], answers: Sequence[int]) -> mx.array:
        """[B, T, H] of questions -> [B]: after the last token, the logit of yes less that of no; `answers` are both."""
        last = hidden[mx.arange(len(lengths)), mx.array(list(lengths)) - 1][:, None]
        logits = self.lm_head(last) if "lm_head" in self else self.model.embed_tokens.as_linear(last)
        yes, no = answers
        difference: mx.array = logits[:, 0, yes] - logits[:, 0, no]
        return difference


def _heads(x: mx.array, count: int) -> mx.array:
    return x.reshape(*x.shape[:2], count, -1)
