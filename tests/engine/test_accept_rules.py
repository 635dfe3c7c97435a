"""The accept rules against an analytic oracle: a Markov target, a wrong Markov drafter, and the joint of two tokens.

N = 20,000 draws a case. With alpha = 0.001 the same test refuses a rule that mistakes the drafts' distribution for one
at temperature 0.7 in every case here (`test_the_test_has_power`). The fast suite has the deepest drafts alone: they go
through all that shallower ones go through.
"""

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from scipy.special import chdtrc

from engine import accept
from engine.noise import Purpose, gumbel, of_step, row_keys, uniform
from engine.request import Sampling
from engine.sampler import Filters, choose

N, VOCABULARY, ALPHA = 20_000, 12, 1e-3
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=6),
    Sampling(temperature=1.4, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1, top_k=8, top_p=0.95),
]


def tables(seed: int) -> tuple[mx.array, mx.array]:
    """Logits of the next token given the last: the target's and the drafter's, [V, V]."""
    draws = np.random.default_rng(seed)
    target = draws.normal(size=(VOCABULARY, VOCABULARY)) * 1.5
    return mx.array(target.astype(np.float32)), mx.array((target + draws.normal(size=target.shape)).astype(np.float32))


def speculate_pairs(
    rule: str, depth: int, sampling: Sampling, q_temperature: float = 1.0, first_seed: int = 0
) -> tuple[Counter[tuple[int, int]], float]:
    """Pairs of tokens from token 0 on, one for each of N seeds; and the share of first drafts accepted."""
    target, drafter = tables(1)
    filters = Filters.of([sampling], VOCABULARY)
    keys = row_keys(range(first_seed, first_seed + N))
    made: list[list[int]] = [[] for _ in range(N)]
    last, place = mx.zeros((N,), dtype=mx.int32), mx.zeros((N,), dtype=mx.int32)
    first_accepted = 0.0
    for step in range(2):
        limit = mx.full((N,), depth, dtype=mx.int32)
        ids, q, token = [], [], last
        draft_keys = keys[:, Purpose.TARGET] if rule == "coupled" else of_step(keys[:, Purpose.DRAFT], place)
        for j in range(depth):
            scores = filters.scores(drafter[token][:, None])[:, 0]
            token = choose(scores, gumbel(draft_keys, place[:, None] + j, VOCABULARY)[:, 0])
            ids.append(token)
            q.append(mx.softmax(scores / q_temperature, axis=-1))
        drafts = mx.stack(ids, axis=1)
        scores = filters.scores(target[mx.concatenate([last[:, None], drafts], axis=1)])
        positions = place[:, None] + mx.arange(depth + 1)
        noise = gumbel(keys[:, Purpose.TARGET], positions, VOCABULARY)
        if rule == "coupled":
            verdict = accept.coupled(scores, drafts, limit, noise)
        else:
            chance = uniform(of_step(keys[:, Purpose.ACCEPT], place), positions[:, :-1])
            judge = accept.block if rule == "block" else accept.rejection
            verdict = judge(scores, drafts, limit, noise, mx.stack(q, axis=1), chance)
        if step == 0:
            first_accepted = float((verdict.accepted > 0).astype(mx.float32).mean())
        for row, tokens, count in zip(made, verdict.tokens.tolist(), verdict.accepted.tolist(), strict=True):
            row += tokens[: count + 1]
        last = mx.take_along_axis(verdict.tokens, verdict.accepted[:, None], axis=1)[:, 0]
        place = place + verdict.accepted + 1
    return Counter((row[0], row[1]) for row in made), first_accepted


def p_value(counts: Counter[tuple[int, int]], sampling: Sampling) -> float:
    target, _ = tables(1)
    p = np.array(
        mx.softmax(Filters.of([sampling], VOCABULARY).scores(target[:, None]), axis=-1)[:, 0], dtype=np.float64
    )
    joint = p[0][:, None] * p
    assert all(joint[pair] > 0 for pair in counts), "a pair that the target never gives"
    big = joint * N >= 5
    seen = np.array([[counts[a, b] for b in range(VOCABULARY)] for a in range(VOCABULARY)])
    observed = np.append(seen[big], N - seen[big].sum())
    expected = np.append(joint[big] * N, N - joint[big].sum() * N)
    kept = expected > 1e-6
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    return float(chdtrc(kept.sum() - 1, statistic))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_rule_keeps_the_targets_joint_distribution(rule: str, depth: int, sampling: Sampling) -> None:
    counts, accepted = speculate_pairs(rule, depth, sampling)
    assert 0.2 < accepted < 0.95, "the case judges nothing"
    assert p_value(counts, sampling) > ALPHA


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_test_has_power(rule: str, sampling: Sampling) -> None:
    counts, _ = speculate_pairs(rule, 2, sampling, q_temperature=0.7)
    assert p_value(counts, sampling) < ALPHA


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_coupled_pairs_are_direct_draws_pair_by_pair(depth: int, sampling: Sampling) -> None:
    target, _ = tables(1)
    filters = Filters.of([sampling], VOCABULARY)
    keys, last = row_keys(range(N))[:, Purpose.TARGET], mx.zeros((N,), dtype=mx.int32)
    direct = []
    for place in range(2):
        noise = gumbel(keys, mx.full((N, 1), place, dtype=mx.int32), VOCABULARY)[:, 0]
        last = choose(filters.scores(target[last][:, None])[:, 0], noise)
        direct.append(last.tolist())
    counts, _ = speculate_pairs("coupled", depth, sampling)
    assert counts == Counter(zip(*direct, strict=True))


def test_acceptance_under_rejection_is_the_overlap_of_the_distributions() -> None:
    target, drafter = tables(1)
    overlap = float(mx.minimum(mx.softmax(target[0]), mx.softmax(drafter[0])).sum())
    _, accepted = speculate_pairs("rejection", 1, Sampling())
    assert accepted == pytest.approx(overlap, abs=4 * 0.5 / N**0.5)


def test_drafts_past_a_rows_limit_are_not_judged() -> None:
    scores = mx.zeros((2, 3, 4)) + mx.array([9.0, 0, 0, 0])
    drafts = mx.zeros((2, 2), dtype=mx.int32)
    limit = mx.array([0, 1])
    assert accept.coupled(scores, drafts, limit, None).accepted.tolist() == [0, 1]
    q = mx.full((2, 2, 4), 0.25)
    keys = row_keys([1, 2])
    noise = gumbel(keys[:, 0], mx.arange(3)[None] + mx.zeros((2, 1), dtype=mx.int32), 4)
    verdict = accept.rejection(scores, drafts, limit, noise, q, mx.zeros((2, 2)))
    assert verdict.accepted.tolist() == [0, 1]


def test_equal_distributions_never_refuse_and_never_give_token_zero_by_default() -> None:
    p = mx.softmax(mx.random.normal((500, 1, 8), key=mx.random.key(3)), axis=-1)
    scores = mx.log(mx.concatenate([p, p], axis=1))
    keys = row_keys(range(500))
    drafts = choose(mx.log(p[:, 0]), gumbel(keys[:, Purpose.DRAFT], mx.zeros((500, 1), dtype=mx.int32), 8)[:, 0])
    noise = gumbel(keys[:, Purpose.TARGET], mx.zeros((500, 2), dtype=mx.int32) + mx.arange(2), 8)
    chance = mx.full((500, 1), 0.999999)
    verdict = accept.rejection(scores, drafts[:, None], mx.ones((500,), dtype=mx.int32), noise, p, chance)
    assert verdict.accepted.tolist() == [1] * 500
