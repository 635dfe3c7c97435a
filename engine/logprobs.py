"""Log-probabilities of tokens under the model itself: a prompt's while it is read, and in the form that events have."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from engine.errors import NumericalError
from engine.events import TokenLogprob
from engine.models.spec import SpecModel
from engine.request import MAX_DEPTH

NOT_FINITE = (
    "The model gave a logit that is not a finite number. Its weights may be damaged, or the prompt drives it out of "
    "range; inspect the model, or try another prompt."
)
PIECE = MAX_DEPTH + 1
"""Tokens whose logits exist at once. The memory plan sets as many aside for a step of each row, and a row whose prompt
is read takes part in no step, so reading needs no more than that; all of a chunk of 2,048 would be 1.2 GB with a
vocabulary of 150,000."""


class Scores(NamedTuple):
    """Of N tokens.

    Attributes:
        values: [N, 1 + K], each token's own log-probability, then those of K likely ones. likeliest: their ids, [N, K].
    """

    tokens: Sequence[int]
    values: list[list[float]]
    likeliest: list[list[int]]


def score(spec: SpecModel, hidden: mx.array, following: Sequence[int], top: int) -> Scores:
    """What the model gave each token that `following` says came after each of `hidden` [1, N, H], with the `top`
    likeliest in its place. Evaluates as it goes.

    Raises NumericalError for logits that are not finite numbers.
    """
    scores = Scores(following, [], [])
    for start in range(0, len(following), PIECE):
        tokens = mx.array(list(following[start : start + PIECE]), dtype=mx.int32)
        logits = spec.logits(hidden[:, start : start + PIECE])[0]
        ids = tokens[:, None]
        if top:
            ids = mx.concatenate([ids, mx.argpartition(-logits, top - 1, axis=-1)[:, :top].astype(mx.int32)], axis=1)
        mass = mx.logsumexp(logits, axis=-1, keepdims=True)
        values = mx.take_along_axis(logits, ids, axis=-1) - mass
        finite = mx.isfinite(mass).all()
        mx.eval(ids, values, finite)
        if not finite.item():
            raise NumericalError(NOT_FINITE)
        read: Any = values.tolist(), ids[:, 1:].tolist()
        scores.values.extend(read[0])
        scores.likeliest.extend(read[1])
    return scores


def told(scores: Scores, top: int, text: Callable[[int], bytes]) -> tuple[TokenLogprob, ...]:
    """Scores as listeners get them, each token with its `top` likeliest alternatives, the likeliest first.

    There may be more values than tokens; what is behind the last token is left out. `text` gives a token's bytes.
    """
    result = []
    for token, (own, *values), ids in zip(scores.tokens, scores.values, scores.likeliest, strict=False):
        ranked = sorted(zip(ids, values, strict=True), key=lambda pair: -pair[1])[:top]
        result.append(TokenLogprob(token, text(token), own, tuple((i, text(i), value) for i, value in ranked)))
    return tuple(result)
