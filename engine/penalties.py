"""Logit bias and the penalties that depend on the tokens so far, kept on the device along the drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import mlx.core as mx

from engine.request import Sampling


@dataclass(frozen=True, slots=True)
class Penalties:
    """Settings and token counts of B rows.

    Attributes:
        bias: [B, V] added to the logits.
        seen: [B, V], 1 where the token is in the prompt or the output. made: [B, V], occurrences in the output.
        repetition, presence, frequency: [B, 1].
    """

    bias: mx.array
    seen: mx.array
    made: mx.array
    repetition: mx.array
    presence: mx.array
    frequency: mx.array

    @classmethod
    def of(cls, sampling: Sampling, prompt: Sequence[int], vocab_size: int) -> "Penalties | None":
        """For one row that has made nothing yet; None where it has neither penalty nor bias."""
        if not sampling.penalised:
            return None
        ids, values = zip(*sampling.logit_bias, strict=True) if sampling.logit_bias else ((), ())
        seen = mx.zeros((vocab_size,)).at[mx.array(list(prompt), dtype=mx.int32)].maximum(1.0)
        bias = mx.zeros((vocab_size,)).at[mx.array(ids, dtype=mx.int32)].add(mx.array(values, dtype=mx.float32))
        return cls(
            bias=bias[None],
            seen=seen[None],
            made=mx.zeros((1, vocab_size)),
            repetition=mx.array([[sampling.repetition_penalty]]),
            presence=mx.array([[sampling.presence_penalty]]),
            frequency=mx.array([[sampling.frequency_penalty]]),
        )

    @classmethod
    def none(cls, rows: int, vocab_size: int) -> "Penalties":
        """For rows that have neither, beside rows that do."""
        nothing, zero = mx.zeros((rows, vocab_size)), mx.zeros((rows, 1))
        return cls(nothing, nothing, nothing, mx.ones((rows, 1)), zero, zero)

    @classmethod
    def merge(cls, parts: Sequence[tuple["Penalties | None", int]], vocab_size: int) -> "Penalties | None":
        """Of batches with so many rows each, in their order; None where none has any."""
        if all(part is None for part, _ in parts):
            return None
        whole = [cls.none(rows, vocab_size) if part is None else part for part, rows in parts]
        return cls(**{f.name: mx.concatenate([getattr(part, f.name) for part in whole]) for f in fields(cls)})

    def select(self, rows: mx.array) -> "Penalties":
        """Of some of the rows, in the order given."""
        return Penalties(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def apply(self, logits: mx.array, ids: mx.array | None = None) -> mx.array:
        """Logits [B, V] of the next token after what was counted; `ids` names the columns where they are a subset."""
        bias, seen, made = (x if ids is None else x[:, ids] for x in (self.bias, self.seen, self.made))
        logits = logits + bias
        scaled = mx.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = mx.where(seen > 0, scaled, logits)
        return logits - self.presence * (made > 0) - self.frequency * made

    def apply_along(self, logits: mx.array, tokens: mx.array) -> mx.array:
        """Logits [B, T, V] of a verify block, row t counting the first t of `tokens` [B, T - 1] as made."""
        ahead, rows = self, [self.apply(logits[:, 0])]
        for t in range(1, logits.shape[1]):
            ahead = ahead.count(tokens[:, t - 1])
            rows.append(ahead.apply(logits[:, t]))
        return mx.stack(rows, axis=1)

    def count(self, tokens: mx.array, kept: mx.array | None = None) -> "Penalties":
        """With one more token in each row, [B]; rows where `kept` is False stay as they are."""
        one_hot = mx.arange(self.made.shape[-1]) == tokens[:, None]
        if kept is not None:
            one_hot = one_hot & kept[:, None]
        one_hot = one_hot.astype(mx.float32)
        return replace(self, seen=mx.maximum(self.seen, one_hot), made=self.made + one_hot)
