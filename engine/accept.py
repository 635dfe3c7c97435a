"""The accept rules: which drafts stand, and which token follows them. Both keep the target's distribution exactly.

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
    places = drafts[..., None]
    p_draft = mx.take_along_axis(p[:, :-1], places, axis=-1)[..., 0]
    q_draft = mx.take_along_axis(q, places, axis=-1)[..., 0]
    accepted = _run_length(uniform * q_draft < p_draft, limit)
    row = accepted[:, None, None]
    p_end = mx.take_along_axis(p, row, axis=1)[:, 0]
    q_end = mx.take_along_axis(q, mx.minimum(row, q.shape[1] - 1), axis=1)[:, 0]
    refused = (accepted < limit)[:, None]
    residual = mx.maximum(p_end - q_end, 0.0)
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
