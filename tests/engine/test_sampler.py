"""Filters against a plain reading of their definitions."""

import math

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.noise import Purpose, gumbel, row_keys, uniform
from engine.penalties import Penalties
from engine.request import Sampling
from engine.sampler import Filters, choose

V = 20
logit_rows = st.lists(st.integers(-320, 320), min_size=V, max_size=V, unique=True).map(
    lambda row: [n / 40 for n in row]
)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, V - 1, V, 10**6]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def oracle(logits: list[float], s: Sampling) -> np.ndarray:
    """Probabilities, by the words of `Sampling`."""
    x = np.array(logits, dtype=np.float64)
    if s.temperature == 0:
        return (x == x.max()).astype(float)
    p = np.exp(x / s.temperature - (x / s.temperature).max())
    order = np.argsort(-p)
    if 0 < s.top_k < V:
        p[order[s.top_k :]] = 0
    p /= p.sum()
    if s.top_p < 1:
        mass = np.cumsum(p[order])
        keep = int(np.searchsorted(mass, s.top_p - 1e-9)) + 1
        p[order[keep:]] = 0
    p[p < s.min_p * p.max() * (1 - 1e-6)] = 0
    return p / p.sum()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(logit_rows, samplings), min_size=1, max_size=4))
def test_filters_of_a_mixed_batch_follow_their_definitions(rows: list[tuple[list[float], Sampling]]) -> None:
    filters = Filters.of([s for _, s in rows], V)
    scores = filters.scores(mx.array([[logits] for logits, _ in rows]))
    if filters.greedy:
        assert choose(scores, None)[:, 0].tolist() == [int(np.argmax(logits)) for logits, _ in rows]
        return
    got = np.array(mx.softmax(scores, axis=-1))[:, 0]
    for p, (logits, s) in zip(got, rows, strict=True):
        want = oracle(logits, s)
        # at the very border of the nucleus rounding may decide either way
        border = (
            s.top_p < 1
            and np.abs(np.cumsum(np.sort(oracle(logits, Sampling(s.temperature or 1, s.top_k)))[::-1]) - s.top_p).min()
            < 1e-5
        )
        if not border:
            np.testing.assert_allclose(p, want, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    logit_rows,
    st.lists(st.integers(0, V - 1), min_size=1, max_size=8),
    st.lists(st.integers(0, V - 1), max_size=8),
    st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([-2.0, 0.0, 1.5]), st.sampled_from([-1.0, 0.0, 0.7]),
)  # fmt: skip
def test_penalties_follow_their_definitions(
    logits: list[float], prompt: list[int], made: list[int], repetition: float, presence: float, frequency: float
) -> None:
    sampling = Sampling(1.0, 0, 1.0, 0.0, repetition, presence, frequency, ((3, 2.5),))
    penalties = Penalties.of(sampling, prompt, V)
    assert penalties is not None
    for token in made:
        penalties = penalties.count(mx.array([token]))
    want = np.array(logits)
    want[3] += 2.5
    for token in set(prompt) | set(made):
        want[token] = want[token] / repetition if want[token] > 0 else want[token] * repetition
    for token in set(made):
        want[token] -= presence + frequency * made.count(token)
    np.testing.assert_allclose(np.array(penalties.apply(mx.array([logits])))[0], want, rtol=1e-4, atol=1e-4)
    along = penalties.apply_along(mx.array([[logits] * 3]), mx.array([[1, 1]]))
    again = penalties.count(mx.array([1])).count(mx.array([1])).apply(mx.array([logits]))
    np.testing.assert_allclose(np.array(along)[0, 2], np.array(again)[0], rtol=1e-5)


def test_noise_is_a_function_of_seed_position_and_purpose_only() -> None:
    keys = row_keys([1, 2, 2**64 - 1])
    positions = mx.array([[5, 6], [6, 7], [0, 4_000_000]])
    together = gumbel(keys[:, Purpose.TARGET], positions, 50)
    for row in range(3):
        for place in range(2):
            alone = gumbel(keys[row : row + 1, Purpose.TARGET], positions[row : row + 1, place : place + 1], 50)
            assert mx.array_equal(alone[0, 0], together[row, place])
    assert not mx.array_equal(gumbel(keys[:, Purpose.DRAFT], positions, 50), together)
    assert not mx.array_equal(together[0, 1], together[1, 0])


def test_uniform_noise_is_uniform_over_positions_and_over_seeds() -> None:
    over_positions = np.sort(np.array(uniform(row_keys([9])[:, Purpose.ACCEPT], mx.arange(20_000)[None]))[0])
    over_seeds = np.sort(np.array(uniform(row_keys(range(20_000))[:, Purpose.ACCEPT], mx.zeros((20_000, 1))))[:, 0])
    for sample in (over_positions, over_seeds):
        gap = np.abs(sample - np.arange(20_000) / 20_000).max()
        assert gap < 1.95 / math.sqrt(20_000)  # Kolmogorov-Smirnov at 0.001
        assert sample[0] >= 0
        assert sample[-1] < 1
