"""From the vectors of an input's tokens to the one that stands for it."""

import mlx.core as mx

from engine.retrieval.card import Card, Pooling


def vectors(hidden: mx.array, lengths: list[int], card: Card, dimensions: int | None) -> mx.array:
    """[B, T, H] of inputs padded behind -> [B, H] float32, or [B, dimensions] of length 1, as the card says."""
    pooled = pool(hidden, lengths, card.pooling)
    if dimensions is not None:
        pooled = pooled[:, :dimensions]
    return unit(pooled) if card.normalise or dimensions is not None else pooled


def pool(hidden: mx.array, lengths: list[int], pooling: Pooling) -> mx.array:
    """[B, T, H] -> [B, H] float32, padding left out."""
    hidden = hidden.astype(mx.float32)
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        return hidden[mx.arange(len(lengths)), mx.array(lengths) - 1]
    counts = mx.array(lengths)[:, None]
    own = (mx.arange(hidden.shape[1]) < counts)[:, :, None]
    if pooling == "max":
        return mx.max(mx.where(own, hidden, -mx.inf), axis=1)
    return mx.sum(mx.where(own, hidden, 0.0), axis=1) / counts


def unit(vectors: mx.array) -> mx.array:
    """[B, H], each with length 1."""
    return vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def relevance(logits: mx.array, card: Card) -> mx.array:
    """[B] logits -> [B] float32: how relevant, 0 to 1 unless the checkpoint wants its logits as they are."""
    logits = logits.astype(mx.float32)
    return mx.sigmoid(logits) if card.sigmoid else logits
