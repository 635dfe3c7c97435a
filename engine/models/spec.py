"""A trunk with its MTP head, in the few calls that the step needs."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.caches.packing import Packing
from engine.caches.state import ModelState
from engine.kernels.verify import Calibration, Widths, use_fastest
from engine.models.head import MTPHead


class SpecModel:
    """Trunk, head and lm_head over one set of weights.

    Attributes:
        width: columns that a step of so many rows and tokens should run, see `kernels.verify`.

    Args:
        text: mlx-lm's language model: `.model` is the trunk, which gives hiddens after its final norm.
        recurrent: for each trunk layer, whether it keeps a recurrent state.
        head: None in autoregressive mode.
        draft_ids: ids of the tokens that may be drafted, ascending; None drafts from the whole vocabulary.
        packing: how the trunk's keys and values are kept; None keeps them as they are.
        calibration: what is fast on this machine; None runs every product as MLX does.
    """

    def __init__(
        self,
        text: Any,
        recurrent: list[bool],
        head: MTPHead | None = None,
        draft_ids: mx.array | None = None,
        packing: Packing | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self._trunk = text.model
        self._embed = text.model.embed_tokens
        self._lm_head = text.lm_head if "lm_head" in text else _linear(self._embed)
        self._recurrent = recurrent
        self._packing = packing
        self.vocab_size = int(text.args.vocab_size)
        self.hidden_size = int(text.args.hidden_size)
        self.head = head
        self.draft_ids = draft_ids
        self._draft_head = self._lm_head
        if draft_ids is not None:
            self._draft_head = _linear(self._lm_head, draft_ids)
        self.width = Widths()
        if calibration is not None:
            step = [text] if "lm_head" in text else [text, self._lm_head]
            self.width = calibration.widths(step, self._embed(mx.array([0])).dtype)
            for module in (*step, self._draft_head, *([] if head is None else [head])):
                use_fastest(module, calibration)

    def new_state(self) -> ModelState:
        """Empty caches of one row."""
        return ModelState.new(self._recurrent, len(self.head.layers) if self.head is not None else 0, self._packing)

    def hidden(self, tokens: mx.array, state: ModelState) -> mx.array:
        """Run the trunk over [B, T] tokens: hiddens after the final norm, [B, T, H]."""
        hidden: mx.array = self._trunk(tokens, state.trunk)
        return hidden

    def embed(self, tokens: mx.array) -> mx.array:
        """[B, T] -> [B, T, H], what the trunk's first layer is given."""
        x: mx.array = self._embed(tokens)
        return x

    def through(self, place: int, x: mx.array, state: ModelState) -> mx.array:
        """One layer of the trunk; all of them, with `embed` in front and `normed` behind, are `hidden`."""
        cache = state.trunk[place]
        output: mx.array = self._trunk.layers[place](x, cache.make_mask(x.shape[1]), cache)
        return output

    def normed(self, x: mx.array) -> mx.array:
        """The trunk's final norm."""
        hidden: mx.array = self._trunk.norm(x)
        return hidden

    def logits(self, hidden: mx.array) -> mx.array:
        """[B, T, H] -> [B, T, V] float32."""
        logits: mx.array = self._lm_head(hidden)
        return logits.astype(mx.float32)

    def head_hidden(self, tokens: mx.array, hidden: mx.array, state: ModelState) -> mx.array:
        """Run the head over T rows: `tokens` [B, T] are those that follow each of `hidden` [B, T, H]."""
        assert self.head is not None
        return self.head(self._embed(tokens), hidden, state.head)

    def draft_logits(self, hidden: mx.array) -> mx.array:
        """[B, H] -> [B, Vd] float32, over `draft_ids`, or over the vocabulary where that is None."""
        logits: mx.array = self._draft_head(hidden)
        return logits.astype(mx.float32)


def _linear(module: nn.Module, ids: mx.array | None = None) -> nn.Linear | nn.QuantizedLinear:
    """The weight of a linear layer or an embedding as a linear layer; with ids, one of these output rows alone."""

    def some(array: mx.array) -> mx.array:
        return array if ids is None else array[ids]

    if "scales" in module:
        group, bits, mode = module.group_size, module.bits, module.mode
        linear = nn.QuantizedLinear(group, 1, bias=False, group_size=group, bits=bits, mode=mode)
        linear.scales = some(module.scales)
        if "biases" in module:
            linear.biases = some(module.biases)
    else:
        linear = nn.Linear(1, 1, bias=False)
    linear.weight = some(module.weight)
    mx.eval(linear.parameters())
    return linear
