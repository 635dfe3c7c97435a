"""Drafts from the model's own MTP head: it reads what the trunk committed, then chains one token after another."""

from typing import NamedTuple

import mlx.core as mx

from engine.models.spec import SpecModel
from engine.noise import Purpose, gumbel, of_step
from engine.rows import BACKLOG, Backlog, Rows
from engine.sampler import choose


class Drafts(NamedTuple):
    """D tokens a row.

    Attributes:
        ids: [B, D] int32. q: [B, D, V], what each was drawn from; None where no rule needs it.
        certain: [B] bool, rows whose drafts were given and not drawn; None where all were drawn.
    """

    ids: mx.array
    q: mx.array | None
    certain: mx.array | None = None


def draft(spec: SpecModel, rows: Rows, depth: int, allowed: mx.array | None = None) -> Drafts:
    """Let the head read the backlog, then chain `depth` drafts from its last row.

    Args:
        allowed: [B, V] bool, tokens that may come next where a grammar says so; the first draft is one of them, if the
            drafts' vocabulary has any. Behind it they depend on what it is, which only the host could say.
    """
    backlog = rows.backlog
    if backlog is None:
        return Drafts(mx.zeros((len(rows), 0), dtype=mx.int32), None)
    hidden = catch_up(spec, rows, backlog)
    if not depth:
        return Drafts(mx.zeros((len(rows), 0), dtype=mx.int32), None)
    state = rows.state
    needs_q = bool(rows.rules - {"coupled"}) and not rows.filters.greedy
    penalties = rows.penalties
    ids: list[mx.array] = []
    q: list[mx.array] = []
    for place in range(depth):
        if place:
            # the head's row of a position holds the hidden there, so the first draft goes right behind the backlog
            state.head_clock.offset = state.clock.offset + (place - 1)
            state.head_clock.bound = state.clock.bound + (place - 1)
            hidden = spec.head_hidden(ids[-1][:, None], hidden, state)
        logits = spec.draft_logits(hidden[:, 0])
        if penalties is not None:
            logits = penalties.apply(logits, spec.draft_ids)
        if allowed is not None and not place:
            logits = _masked(logits, allowed if spec.draft_ids is None else allowed[:, spec.draft_ids])
        scores = rows.filters.scores(logits[:, None])[:, 0]
        token = choose(scores, _noise(rows, place, spec.draft_ids))
        if needs_q:
            q.append(_widened(mx.softmax(scores, axis=-1), spec.draft_ids, rows.vocab_size))
        if spec.draft_ids is not None:
            token = spec.draft_ids[token]
        ids.append(token)
        if penalties is not None:
            penalties = penalties.count(token)
    return Drafts(mx.stack(ids, axis=1), mx.stack(q, axis=1) if needs_q else None)


def _masked(logits: mx.array, allowed: mx.array) -> mx.array:
    """Logits [B, Vd] of what is allowed; as they are in a row where that is nothing, since q must be a distribution."""
    return mx.where(allowed | mx.logical_not(allowed.any(axis=-1, keepdims=True)), logits, -mx.inf)


def catch_up(spec: SpecModel, rows: Rows, backlog: Backlog) -> mx.array:
    """Commit the backlog to the head's cache; the head's hidden at each row's last real place, [B, 1, H]."""
    state = rows.state
    state.head_clock.offset = state.clock.offset - backlog.fresh
    state.head_clock.bound = state.clock.bound
    hidden = spec.head_hidden(backlog.tokens, backlog.hidden, state)
    last = mx.maximum(backlog.fresh - 1, 0)  # a prompt of one token leaves the head nothing: its drafts are blind
    return mx.take_along_axis(hidden, last[:, None, None], axis=1)


def next_backlog(spec: SpecModel, rows: Rows, old: Backlog, new: Backlog) -> Backlog:
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
    catch_up(spec, rows, grown)
    return Backlog(new.hidden, new.tokens, mx.ones_like(new.fresh))


def _noise(rows: Rows, place: int, draft_ids: mx.array | None) -> mx.array | None:
    """Noise of the draft at `place`: a coupled row shares the target's, others have their own. [B, Vd]."""
    if rows.filters.greedy:
        return None
    start = rows.state.clock.offset
    keys = of_step(rows.keys[:, Purpose.DRAFT], start)
    if "coupled" in rows.rules:
        keys = mx.where(rows.coupled[:, None], rows.keys[:, Purpose.TARGET], keys)
    noise = gumbel(keys, start[:, None] + (1 + place), rows.vocab_size)[:, 0]
    return noise if draft_ids is None else noise[:, draft_ids]


def _widened(q: mx.array, draft_ids: mx.array | None, vocab_size: int) -> mx.array:
    """Probabilities over the draft vocabulary to the whole one: [B, Vd] -> [B, V]."""
    if draft_ids is None:
        return q
    return mx.zeros((q.shape[0], vocab_size)).at[:, draft_ids].add(q)
