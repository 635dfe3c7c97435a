"""The accept rules: which drafts stand, and which token follows them. All keep the target's distribution exactly.

T = D + 1 verify rows; row j holds the target's scores for the token at draft j's place, row D for the bonus token.
Drafts past a row's own `limit` are not judged: that row behaves as if it had drafted only `limit` tokens.
"""

from typing import NamedTuple

import mlx.core as mx

from engine.sampler import choose


class Verdict(NamedTuple):
    """What a step decided.

    Attributes:
        tokens: [B, T] int32: accepted drafts, then the target's own token; what follows is dead.
        accepted: [B] int32, 0 to D.
    """

    tokens: mx.array
    accepted: mx.array


def coupled(scores: mx.array, drafts: mx.array, limit: mx.array, gumbel: mx.array | None) -> Verdict:
    """Accept while the draft is the target's own choice under the noise of its position.

    The text is, token for token, that of plain decoding with the same noise (drafter-invariant speculation, Daliri
    et al. 2024, arXiv 2408.07978); without noise it is greedy decoding. Draft and target share the noise, so they
    agree often.

    Args:
        scores: [B, T, V]. drafts: [B, D]. limit: [B], drafts that count. gumbel: [B, T, V], None where all is greedy.
    """
    target = choose(scores, gumbel)
    return Verdict(target, _run_length(target[:, :-1] == drafts, limit))


def rejection(
    scores: mx.array, drafts: mx.array, limit: mx.array, gumbel: mx.array, q: mx.array, uniform: mx.array
) -> Verdict:
    """Accept draft d with probability min(1, p(d) / q(d)); where refused, draw from max(p - q, 0).

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). `q` must be the very distribution
    that the drafts were drawn from.

    Args:
        scores, drafts, limit: as for `coupled`. gumbel: [B, T, V], independent of the drafts' noise.
        q: [B, D, V] probabilities. uniform: [B, D] in [0, 1).
    """
    p = mx.softmax(scores, axis=-1)
    p_draft, q_draft = _of_drafts(p[:, :-1], drafts), _of_drafts(q, drafts)
    accepted = _run_length(uniform * q_draft < p_draft, limit)
    return _followed(p, drafts, accepted, limit, gumbel, q, mx.array(1.0))


def block(
    scores: mx.array, drafts: mx.array, limit: mx.array, gumbel: mx.array, q: mx.array, uniform: mx.array
) -> Verdict:
    """Accept the longest prefix that a joint test of the block lets pass; never fewer tokens than `rejection`.

    Block verification (Sun et al. 2024, arXiv 2403.10444): with w_0 = 1 and w_i = min(1, w_(i-1) p(d_i) / q(d_i)), the
    prefix of i drafts passes with probability h_i = r_i / (r_i + 1 - w_i), r_i = sum(max(w_i p - q, 0)) over what may
    follow it; behind the last draft h is w itself. What follows the longest passing prefix is drawn from
    max(w p - q, 0). Arguments as for `rejection`.
    """
    p = mx.softmax(scores, axis=-1)
    ratio = _of_drafts(p[:, :-1], drafts) / _of_drafts(q, drafts)
    weight = mx.ones_like(ratio[:, 0])
    weights = []
    for place in range(drafts.shape[1]):
        weight = mx.minimum(weight * ratio[:, place], 1.0)
        weights.append(weight)
    w = mx.stack(weights, axis=1)
    left = mx.maximum(w[:, :-1, None] * p[:, 1:-1] - q[:, 1:], 0.0).sum(axis=-1)
    out_of = left + 1.0 - w[:, :-1]
    inner = mx.where(out_of > 0, left / out_of, 1.0)  # 0 of 0 where p = q: nothing could be drawn in its place
    inner = mx.concatenate([inner, w[:, -1:]], axis=1)
    counts = mx.arange(1, drafts.shape[1] + 1)
    passing = mx.where(counts == limit[:, None], w, inner)
    longest = mx.where((uniform < passing) & (counts <= limit[:, None]), counts, 0).max(axis=1)
    accepted = longest.astype(mx.int32)
    at_end = mx.take_along_axis(mx.concatenate([mx.ones_like(w[:, :1]), w], axis=1), accepted[:, None], axis=1)
    return _followed(p, drafts, accepted, limit, gumbel, q, at_end)


def synthetic(scores: mx.array, drafts: mx.array, limit: mx.array, uniform: mx.array, rate: float) -> Verdict:
    """Accept each draft with a given chance, whatever it is: a model's costs at an acceptance that it does not have."""
    accepted = _run_length(uniform < rate, limit)
    target = choose(scores, None)
    padded = mx.concatenate([drafts, target[:, -1:]], axis=1)
    return Verdict(mx.where(mx.arange(padded.shape[1]) < accepted[:, None], padded, target), accepted)


def _of_drafts(probabilities: mx.array, drafts: mx.array) -> mx.array:
    """The drafts' own, [B, D, V], [B, D] -> [B, D]."""
    return mx.take_along_axis(probabilities, drafts[..., None], axis=-1)[..., 0]


def _followed(
    p: mx.array, drafts: mx.array, accepted: mx.array, limit: mx.array, gumbel: mx.array, q: mx.array, weight: mx.array
) -> Verdict:
    """Behind the accepted drafts a token from max(weight p - q, 0), or from p where none was refused."""
    row = accepted[:, None, None]
    p_end = mx.take_along_axis(p, row, axis=1)[:, 0]
    q_end = mx.take_along_axis(q, mx.minimum(row, q.shape[1] - 1), axis=1)[:, 0]
    refused = (accepted < limit)[:, None]
    residual = mx.maximum(weight * p_end - q_end, 0.0)
    usable = refused & (residual.sum(axis=-1, keepdims=True) > 0)  # p = q up to rounding leaves nothing to draw from
    weights = mx.where(usable, residual, p_end)
    noise = mx.take_along_axis(gumbel, row, axis=1)[:, 0]
    last = choose(mx.log(weights), noise)
    padded = mx.concatenate([drafts, drafts[:, -1:]], axis=1)
    tokens = mx.where(mx.arange(padded.shape[1]) < accepted[:, None], padded, last[:, None])
    return Verdict(tokens, accepted)


def either(is_coupled: mx.array, first: Verdict, second: Verdict) -> Verdict:
    """Row by row: `first` where is_coupled [B] holds, else `second`."""
    return Verdict(
        mx.where(is_coupled[:, None], first.tokens, second.tokens),
        mx.where(is_coupled, first.accepted, second.accepted),
    )


def _run_length(ok: mx.array, limit: mx.array) -> mx.array:
    """How many drafts from the first on are ok, within the limit: [B, D], [B] -> [B] int32."""
    ok = ok & (mx.arange(ok.shape[1]) < limit[:, None])
    return mx.cumprod(ok.astype(mx.int32), axis=1).sum(axis=1).astype(mx.int32)
