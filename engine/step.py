"""One speculative step over a batch of rows: commit the head, draft, verify, accept, advance.

This is Leviathan et al. 2023 with the model's own MTP head as the drafter. Shapes are static in B rows and T = D + 1
columns; rows accept different numbers of drafts. Nothing here reads a value: the whole step is one lazy graph, whose
outcome the caller reads once.
"""

from typing import NamedTuple

import mlx.core as mx

from engine import accept
from engine.accept import Verdict
from engine.models.spec import SpecModel
from engine.noise import Purpose, gumbel, uniform
from engine.penalties import Penalties
from engine.rows import BACKLOG, Backlog, Rows
from engine.sampler import choose


class Drafts(NamedTuple):
    """D tokens a row.

    Attributes:
        ids: [B, D] int32. q: [B, D, V], what each was drawn from; None where no rule needs it.
    """

    ids: mx.array
    q: mx.array | None


class Outcome(NamedTuple):
    """What a step gives to the host.

    Attributes:
        ints: [B, T + D + 2] int32: tokens, drafts, accepted, and 1 where a logit was not finite.
        logprobs: None unless a row asks: [B, T, 1 + K], the tokens' own, then the K likeliest.
        likeliest: ids of those K, [B, T, K].
    """

    ints: mx.array
    logprobs: mx.array | None
    likeliest: mx.array | None


def speculate(spec: SpecModel, rows: Rows, depth: int) -> Outcome:
    """Build one step of `depth` drafts and advance the rows to its end; where it raises, they are as before."""
    before = rows.checkpoint()
    try:
        return _speculate(spec, rows, depth)
    except BaseException:
        rows.restore(before)
        raise


def _speculate(spec: SpecModel, rows: Rows, depth: int) -> Outcome:
    limit = mx.array([min(row.limit, depth) for row in rows.rows], dtype=mx.int32)
    drafts = draft(spec, rows, depth)
    block = mx.concatenate([rows.pending[:, None], drafts.ids], axis=1)
    hidden = spec.hidden(block, rows.state)
    logits = spec.logits(hidden)
    verdict = judge(rows, logits, drafts, limit)
    outcome = _outcome(rows, logits, drafts, verdict)
    advance(spec, rows, hidden, verdict)
    return outcome


def draft(spec: SpecModel, rows: Rows, depth: int) -> Drafts:
    """Let the head read the backlog, then chain `depth` drafts from its last row."""
    state, backlog = rows.state, rows.backlog
    if depth == 0 or backlog is None:
        return Drafts(mx.zeros((len(rows), 0), dtype=mx.int32), None)
    hidden = _catch_up(spec, rows, backlog)
    needs_q = "rejection" in rows.rules and not rows.filters.greedy
    penalties = rows.penalties
    ids: list[mx.array] = []
    q: list[mx.array] = []
    for place in range(depth):
        if (
            place
        ):  # the head's row of a position holds the hidden there, so the first draft goes right behind the backlog
            state.head_clock.offset = state.clock.offset + (place - 1)
            state.head_clock.bound = state.clock.bound + (place - 1)
            hidden = spec.head_hidden(ids[-1][:, None], hidden, state)
        logits = spec.draft_logits(hidden[:, 0])
        if penalties is not None:
            logits = penalties.apply(logits, spec.draft_ids)
        scores = rows.filters.scores(logits[:, None])[:, 0]
        token = choose(scores, _draft_noise(rows, place, spec.draft_ids))
        if needs_q:
            q.append(_widened(mx.softmax(scores, axis=-1), spec.draft_ids, rows.vocab_size))
        if spec.draft_ids is not None:
            token = spec.draft_ids[token]
        ids.append(token)
        if penalties is not None:
            penalties = penalties.count(token)
    return Drafts(mx.stack(ids, axis=1), mx.stack(q, axis=1) if needs_q else None)


def _catch_up(spec: SpecModel, rows: Rows, backlog: Backlog) -> mx.array:
    """Commit the backlog to the head's cache; the head's hidden at each row's last real place, [B, 1, H]."""
    state = rows.state
    state.head_clock.offset = state.clock.offset - backlog.fresh
    state.head_clock.bound = state.clock.bound
    hidden = spec.head_hidden(backlog.tokens, backlog.hidden, state)
    last = mx.maximum(backlog.fresh - 1, 0)  # a prompt of one token leaves the head nothing: its drafts are blind
    return mx.take_along_axis(hidden, last[:, None, None], axis=1)


def _draft_noise(rows: Rows, place: int, draft_ids: mx.array | None) -> mx.array | None:
    """Noise of the draft at `place`: a coupled row shares the target's, a rejection row has its own. [B, Vd]."""
    if rows.filters.greedy:
        return None
    keys = mx.where(rows.coupled[:, None], rows.keys[:, Purpose.TARGET], rows.keys[:, Purpose.DRAFT])
    noise = gumbel(keys, rows.state.clock.offset[:, None] + (1 + place), rows.vocab_size)[:, 0]
    return noise if draft_ids is None else noise[:, draft_ids]


def _widened(q: mx.array, draft_ids: mx.array | None, vocab_size: int) -> mx.array:
    """Probabilities over the draft vocabulary to the whole one: [B, Vd] -> [B, V]."""
    if draft_ids is None:
        return q
    return mx.zeros((q.shape[0], vocab_size)).at[:, draft_ids].add(q)


def judge(rows: Rows, logits: mx.array, drafts: Drafts, limit: mx.array) -> Verdict:
    """Apply each row's accept rule to [B, T, V] logits of the target."""
    length = logits.shape[1]
    if rows.penalties is not None:
        logits = rows.penalties.apply_along(logits, drafts.ids)
    scores = rows.filters.scores(logits)
    if rows.filters.greedy:
        return accept.coupled(scores, drafts.ids, limit, None)
    positions = rows.state.clock.offset[:, None] + 1 + mx.arange(length)
    noise = gumbel(rows.keys[:, Purpose.TARGET], positions, rows.vocab_size)
    if drafts.q is None:
        return accept.coupled(scores, drafts.ids, limit, noise)
    chance = uniform(rows.keys[:, Purpose.ACCEPT], positions[:, :-1])
    by_rejection = accept.rejection(scores, drafts.ids, limit, noise, drafts.q, chance)
    if "coupled" not in rows.rules:
        return by_rejection
    return accept.either(rows.coupled, accept.coupled(scores, drafts.ids, limit, noise), by_rejection)


def advance(spec: SpecModel, rows: Rows, hidden: mx.array, verdict: Verdict) -> None:
    """Commit accepted drafts to the caches; the target's token becomes the pending one."""
    length = hidden.shape[1]
    fresh = verdict.accepted + 1
    if rows.penalties is not None:
        rows.penalties = _count_kept(rows.penalties, verdict.tokens, fresh)
    rows.state.accept(fresh, most=length)
    rows.pending = mx.take_along_axis(verdict.tokens, verdict.accepted[:, None], axis=1)[:, 0]
    if rows.backlog is not None:
        rows.backlog = _next_backlog(spec, rows, rows.backlog, Backlog(hidden, verdict.tokens, fresh))


def _count_kept(penalties: Penalties, tokens: mx.array, kept: mx.array) -> Penalties:
    for place in range(tokens.shape[1]):
        penalties = penalties.count(tokens[:, place], place < kept)
    return penalties


def _next_backlog(spec: SpecModel, rows: Rows, old: Backlog, new: Backlog) -> Backlog:
    """After a step with drafts the old backlog is in the head's cache. Without, the new row is added to it, so that
    plain decoding does not pay for the head; when it is full the head reads it all but the last row."""
    if new.tokens.shape[1] > 1:
        return new
    place = old.fresh[:, None]
    room = mx.zeros_like(new.tokens)
    tokens = mx.put_along_axis(mx.concatenate([old.tokens, room], axis=1), place, new.tokens, axis=1)
    hidden = mx.concatenate([old.hidden, mx.zeros_like(new.hidden)], axis=1)
    hidden = mx.put_along_axis(hidden, mx.broadcast_to(place[..., None], new.hidden.shape), new.hidden, axis=1)
    grown = Backlog(hidden, tokens, old.fresh + 1)
    if tokens.shape[1] < BACKLOG:
        return grown
    _catch_up(spec, rows, grown)
    return Backlog(new.hidden, new.tokens, mx.ones_like(new.fresh))


def _outcome(rows: Rows, logits: mx.array, drafts: Drafts, verdict: Verdict) -> Outcome:
    broken = mx.logical_not(mx.isfinite(logits.max(axis=-1)).all(axis=-1))
    ints = mx.concatenate(
        [verdict.tokens, drafts.ids, verdict.accepted[:, None], broken[:, None].astype(mx.int32)], axis=1
    )
    if rows.top_logprobs is None:
        return Outcome(ints, None, None)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, verdict.tokens[..., None], axis=-1)
    if not rows.top_logprobs:
        return Outcome(ints, own, None)
    likeliest = mx.argpartition(-logprobs, rows.top_logprobs - 1, axis=-1)[..., : rows.top_logprobs]
    top = mx.take_along_axis(logprobs, likeliest, axis=-1)
    return Outcome(ints, mx.concatenate([own, top], axis=-1), likeliest)
