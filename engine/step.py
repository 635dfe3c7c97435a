"""One speculative step over a batch of rows: commit the head, draft, verify, accept, advance.

This is Leviathan et al. 2023 with the model's own MTP head as the drafter. Shapes are static in B rows and T = D + 1
columns; rows accept different numbers of drafts. Nothing here reads a value: the whole step is one lazy graph, whose
outcome the caller reads once. Only where a row has a grammar are the drafts read on the way, since what may follow them
is known to the host alone; the trunk verifies them meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from engine import accept, chain, masks
from engine.accept import Verdict
from engine.chain import Drafts
from engine.events import DraftSource
from engine.models.spec import SpecModel
from engine.noise import Purpose, gumbel, of_step, uniform
from engine.penalties import Penalties
from engine.rows import Backlog, Rows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step drafts.

    Attributes:
        limits: for each row, how many drafts count.
        given: for each row, drafts that the host has for it; where it has none, the head drafts.
        sources: for each row, who drafts for it; none where the head does for all.
        acceptance: accept drafts with this chance whatever they are (benchmarks); None judges them.
    """

    limits: Sequence[int]
    given: Sequence[Sequence[int]] = ()
    sources: Sequence[DraftSource] = ()
    acceptance: float | None = None

    @property
    def depth(self) -> int:
        """D, drafts of the widest row."""
        return max(self.limits)

    def source(self, place: int) -> DraftSource:
        """Who drafts for the row at that place of the batch."""
        return self.sources[place] if self.sources else "mtp"

    @property
    def chained(self) -> int:
        """Drafts that the head makes."""
        given = self.given or [()] * len(self.limits)
        return max((limit for limit, tokens in zip(self.limits, given, strict=True) if not tokens), default=0)


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


def speculate(spec: SpecModel, rows: Rows, plan: StepPlan) -> Outcome:
    """Build one step and advance the rows to its end; where it raises, they are as before."""
    before = rows.checkpoint()
    try:
        return _speculate(spec, rows, plan)
    except BaseException:
        rows.restore(before)
        raise


def _speculate(spec: SpecModel, rows: Rows, plan: StepPlan) -> Outcome:
    drafts = draft(spec, rows, plan)
    length = drafts.ids.shape[1] + 1
    idle = spec.width(len(rows), length) - length
    block = mx.concatenate([rows.pending[:, None], mx.pad(drafts.ids, [(0, 0), (0, idle)])], axis=1)
    rows.state.clock.live = length
    hidden = spec.hidden(block, rows.state)
    logits = spec.logits(hidden)[:, :length]
    allowed = _allowed_along(rows, drafts.ids, logits) if rows.constrained else None
    verdict = judge(rows, logits, drafts, plan, allowed)
    outcome = _outcome(rows, logits, drafts, verdict)
    advance(spec, rows, hidden, verdict)
    return outcome


def draft(spec: SpecModel, rows: Rows, plan: StepPlan) -> Drafts:
    """The head's drafts, and over them those that the host has for some rows."""
    if not plan.depth:
        return Drafts(mx.zeros((len(rows), 0), dtype=mx.int32), None)
    allowed = masks.of_next(rows) if rows.constrained and plan.chained else None
    drawn = chain.draft(spec, rows, plan.chained, allowed)
    if not plan.given:
        return drawn
    missing = plan.depth - plan.chained
    ids = mx.pad(drawn.ids, [(0, 0), (0, missing)])
    given = mx.array([[*tokens, *[0] * (plan.depth - len(tokens))] for tokens in plan.given], dtype=mx.int32)
    certain = mx.array([bool(tokens) for tokens in plan.given])
    q = None if drawn.q is None else mx.pad(drawn.q, [(0, 0), (0, missing), (0, 0)])
    return Drafts(mx.where(certain[:, None], given, ids), q, certain)


def _allowed_along(rows: Rows, drafts: mx.array, logits: mx.array) -> mx.array:
    """The grammars' masks along the drafts, made while the device verifies."""
    mx.async_eval(drafts)  # type: ignore[no-untyped-call]  # untyped in its stubs
    mx.async_eval(logits)  # type: ignore[no-untyped-call]
    return masks.along(rows, drafts)


def judge(rows: Rows, logits: mx.array, drafts: Drafts, plan: StepPlan, allowed: mx.array | None = None) -> Verdict:
    """Apply each row's accept rule to [B, T, V] logits of the target, over the tokens that are `allowed` [B, T, V].

    A draft that is not allowed has no probability under the target, so every rule refuses it by itself. The limit must
    not be cut in front of it: what follows would then be drawn from p and not from what is left of it beside q.

    Given drafts are judged by the coupled rule under any setting: they were not drawn, so the chance that the target's
    own draw equals one is the target's probability of it, which is what rejection would accept it with.
    """
    limit = mx.array(list(plan.limits), dtype=mx.int32)
    length = logits.shape[1]
    if rows.penalties is not None:
        logits = rows.penalties.apply_along(logits, drafts.ids)
    if allowed is not None:
        logits = mx.where(allowed, logits, -mx.inf)
    scores = rows.filters.scores(logits)
    positions = rows.state.clock.offset[:, None] + 1 + mx.arange(length)
    if plan.acceptance is not None and plan.depth:  # without drafts the draw is empty, of which MLX dies
        chance = uniform(rows.keys[:, Purpose.ACCEPT], positions[:, :-1])
        return accept.synthetic(scores, drafts.ids, limit, chance, plan.acceptance)
    if rows.filters.greedy:
        return accept.coupled(scores, drafts.ids, limit, None)
    noise = gumbel(rows.keys[:, Purpose.TARGET], positions, rows.vocab_size)
    if drafts.q is None:
        return accept.coupled(scores, drafts.ids, limit, noise)
    chance = uniform(of_step(rows.keys[:, Purpose.ACCEPT], rows.state.clock.offset), positions[:, :-1])
    verdict = _by_chance(rows, scores, drafts.ids, drafts.q, limit, noise, chance)
    if "coupled" not in rows.rules and drafts.certain is None:
        return verdict
    is_coupled = rows.coupled if drafts.certain is None else rows.coupled | drafts.certain
    return accept.either(is_coupled, accept.coupled(scores, drafts.ids, limit, noise), verdict)


def _by_chance(
    rows: Rows, scores: mx.array, ids: mx.array, q: mx.array, limit: mx.array, noise: mx.array, chance: mx.array
) -> Verdict:
    """Rejection or block verification, each in its rows."""
    rules = rows.rules - {"coupled"}
    if rules == {"block"}:
        return accept.block(scores, ids, limit, noise, q, chance)
    by_rejection = accept.rejection(scores, ids, limit, noise, q, chance)
    if "block" not in rules:
        return by_rejection
    return accept.either(rows.blockwise, accept.block(scores, ids, limit, noise, q, chance), by_rejection)


def advance(spec: SpecModel, rows: Rows, hidden: mx.array, verdict: Verdict) -> None:
    """Commit accepted drafts to the caches; the target's token becomes the pending one.

    `hidden` may have more columns than there are tokens: what such a column wrote is dead.
    """
    length = verdict.tokens.shape[1]
    fresh = verdict.accepted + 1
    if rows.penalties is not None:
        rows.penalties = _count_kept(rows.penalties, verdict.tokens, fresh)
    rows.state.accept(fresh, most=length)
    rows.pending = mx.take_along_axis(verdict.tokens, verdict.accepted[:, None], axis=1)[:, 0]
    if rows.backlog is not None:
        tokens, idle = verdict.tokens, hidden.shape[1] - length
        if length == 1:
            hidden = hidden[:, :1]
        elif idle:
            tokens = mx.pad(tokens, [(0, 0), (0, idle)])
        rows.backlog = chain.next_backlog(spec, rows, rows.backlog, Backlog(hidden, tokens, fresh))


def _count_kept(penalties: Penalties, tokens: mx.array, kept: mx.array) -> Penalties:
    for place in range(tokens.shape[1]):
        penalties = penalties.count(tokens[:, place], place < kept)
    return penalties


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
