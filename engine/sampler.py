"""From logits to the scores that a token is drawn by: temperature, top-k, top-p, min-p, in that order."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.request import Sampling


@dataclass(frozen=True, slots=True)
class Filters:
    """The sampling settings of B rows, as arrays; what no row uses is None and costs nothing.

    Attributes:
        greedy: every row has temperature 0, so scores are the logits and the choice is their argmax.
    """

    greedy: bool
    one_hot: mx.array | None
    temperature: mx.array
    top_k: mx.array | None
    top_k_most: int
    top_k_in_all: bool
    top_p: mx.array | None
    min_p: mx.array | None

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab_size: int) -> "Filters":
        greedy = [s.temperature == 0 for s in samplings]
        top_k = [s.top_k if 0 < s.top_k < vocab_size else 0 for s in samplings]
        return cls(
            greedy=all(greedy),
            one_hot=_column(greedy) if any(greedy) and not all(greedy) else None,
            temperature=_column([s.temperature or 1.0 for s in samplings]),
            top_k=_column(top_k) if any(top_k) else None,
            top_k_most=max(top_k),
            top_k_in_all=all(top_k),
            top_p=_column([s.top_p for s in samplings]) if any(s.top_p < 1 for s in samplings) else None,
            min_p=_column([s.min_p for s in samplings]) if any(s.min_p > 0 for s in samplings) else None,
        )

    def scores(self, logits: mx.array) -> mx.array:
        """[B, T, V] float32 -> [B, T, V]: softmax of it is the distribution to draw from, -inf where dropped.

        Tokens that tie with the last one kept are kept too. Under `greedy` the logits come back as they are.
        """
        if self.greedy:
            return logits
        scores = logits / self.temperature
        if self.top_k is not None or self.top_p is not None:
            scores = mx.where(scores < self._threshold(scores), -mx.inf, scores)
        if self.min_p is not None:
            floor = scores.max(axis=-1, keepdims=True) + mx.log(self.min_p)
            scores = mx.where(scores < floor, -mx.inf, scores)
        if self.one_hot is not None:
            best = mx.argmax(logits, axis=-1, keepdims=True)
            certain = mx.where(mx.arange(logits.shape[-1]) == best, 0.0, -mx.inf)
            scores = mx.where(self.one_hot, certain, scores)
        return scores

    def _threshold(self, scores: mx.array) -> mx.array:
        """The score of the last token that top-k and top-p keep, [B, T, 1]; -inf where they keep all."""
        vocab_size = scores.shape[-1]
        if self.top_k_in_all and self.top_k_most < vocab_size:
            ordered = mx.sort(mx.topk(scores, self.top_k_most, axis=-1), axis=-1)
        else:
            ordered = mx.sort(scores, axis=-1)
        threshold = mx.full((scores.shape[0], 1, 1), -mx.inf)
        if self.top_k is not None:
            nth = mx.clip(ordered.shape[-1] - self.top_k, 0, ordered.shape[-1] - 1)
            nth = mx.broadcast_to(nth, (*scores.shape[:2], 1))
            kth = mx.take_along_axis(ordered, nth, axis=-1)
            threshold = mx.where(self.top_k > 0, kth, -mx.inf)
            ordered = mx.where(ordered < threshold, -mx.inf, ordered)
        if self.top_p is not None:
            above = 1.0 - mx.cumsum(mx.softmax(ordered, axis=-1), axis=-1)
            kept = mx.where(above < self.top_p, ordered, mx.inf)
            nucleus = mx.minimum(kept.min(axis=-1, keepdims=True), ordered[..., -1:])
            threshold = mx.maximum(threshold, mx.where(self.top_p < 1.0, nucleus, -mx.inf))
        return threshold


def choose(scores: mx.array, gumbel: mx.array | None) -> mx.array:
    """Draw tokens by keyed noise: [..., V] -> [...] int32; the likeliest where there is no noise."""
    return mx.argmax(scores if gumbel is None else scores + gumbel, axis=-1).astype(mx.int32)


def _column(values: Sequence[float] | Sequence[bool] | Sequence[int]) -> mx.array:
    return mx.array(list(values))[:, None, None]
