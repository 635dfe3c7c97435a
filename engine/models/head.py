"""The MTP head: one decoder layer of the trunk's own kind behind two norms and a projection."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.models.contract import Concat


class MTPHead(nn.Module):  # type: ignore[misc]  # mlx.nn has no types
    """norm(layer(fc(concat(enorm(embedding), hnorm(hidden))))), as `Contract` describes it.

    Args:
        layer: a decoder layer with full attention, called as layer(x, mask, cache).
    """

    def __init__(self, hidden_size: int, eps: float, layer: nn.Module, concat: Concat) -> None:
        super().__init__()
        self.enorm = nn.RMSNorm(hidden_size, eps=eps)
        self.hnorm = nn.RMSNorm(hidden_size, eps=eps)
        self.fc = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.layers = [layer]
        self.norm = nn.RMSNorm(hidden_size, eps=eps)
        self._concat = concat

    def __call__(self, embedding: mx.array, hidden: mx.array, cache: Sequence[Any]) -> mx.array:
        """Advance by T rows.

        Args:
            embedding: [B, T, H], of the token that follows each hidden. hidden: [B, T, H].
            cache: one KV cache; its clock says where the rows go.
        Returns:
            [B, T, H], from which lm_head predicts the token after next; also the hidden to recycle.
        """
        halves = [self.enorm(embedding), self.hnorm(hidden)]
        if self._concat == "hidden_first":
            halves.reverse()
        x = self.fc(mx.concatenate(halves, axis=-1))
        mask = cache[0].make_mask(x.shape[1])
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, mask, layer_cache)
        output: mx.array = self.norm(x)
        return output
