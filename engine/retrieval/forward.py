"""Inputs through an encoder, in pieces small enough for what else waits for the engine's thread."""

from collections.abc import Callable, Generator, Sequence

import mlx.core as mx

from engine.errors import NumericalError
from engine.retrieval.load import BLOCK, Encoder
from engine.retrieval.texts import Tokens

PROJECTING = 0.2  # share of a layer's work that its keys and values are

Rows = Callable[[Encoder, mx.array, list[int]], mx.array]
"""Hiddens [B, T, H] and the inputs' lengths to what is wanted of each input, [B, ...] in float32."""


def next_batch(inputs: Sequence[Tokens], order: list[int], size: int) -> list[int]:
    """Take the places of the next inputs out of `order`, the longest first: as many as have `size` tokens with their
    padding, but one at least."""
    longest = len(inputs[order[0]].ids)
    taken = order[: max(1, size // longest)]
    del order[: len(taken)]
    return taken


def run(encoder: Encoder, batch: Sequence[Tokens], size: int, rows: Rows) -> Generator[float, None, mx.array]:
    """What `rows` makes of a batch.

    Yields each time that about `size` tokens' worth of work is done, and at the end, with how many they were. A batch
    of more tokens is run layer by layer and block by block.

    Raises:
        NumericalError: the result has values that are not finite.
    """
    lengths = [len(each.ids) for each in batch]
    starts = range(0, max(lengths), BLOCK)
    share = len(batch) / len(encoder.layers)
    mask = encoder.mask(lengths)
    hidden = encoder.embed(*_padded(batch, max(lengths)))
    done = 0.0
    for layer in encoder.layers:
        blocks = [hidden[:, start : start + BLOCK] for start in starts]
        pairs: list[tuple[mx.array, mx.array]] = []
        for start, block in zip(starts, blocks, strict=True):
            pairs.append(layer.project(block, start))
            done += PROJECTING * share * block.shape[1]
            if done > size:
                mx.eval(hidden, pairs)
                yield done
                done = 0.0
        keys, values = (mx.concatenate(list(parts), axis=2) for parts in zip(*pairs, strict=True))
        parts: list[mx.array] = []
        for start, block in zip(starts, blocks, strict=True):
            parts.append(layer.attend(block, keys, values, start, mask))
            done += (1 - PROJECTING) * share * block.shape[1]
            if done > size:
                mx.eval(hidden, keys, values, parts)
                yield done
                done = 0.0
        hidden = mx.concatenate(parts, axis=1)
    result = rows(encoder, encoder.finish(hidden), lengths)
    if not mx.isfinite(result).all():
        raise NumericalError(
            "The model gave a value that is not a finite number. Its weights may be damaged, or an input drives it out "
            "of range."
        )
    yield done
    return result


def _padded(batch: Sequence[Tokens], length: int) -> tuple[mx.array, mx.array]:
    """Ids and the text that each belongs to, [B, T] each; padding is token 0."""
    ids = [[*each.ids, *[0] * (length - len(each.ids))] for each in batch]
    types = [[0] * each.first + [1] * (length - each.first) for each in batch]
    return mx.array(ids), mx.array(types)
