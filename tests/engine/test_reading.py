"""Reading a prompt on the CPU: each operation against its definition, and the whole against single steps."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from engine.caches.recurrent import RecurrentCache
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.kernels import reading
from engine.models.spec import SpecModel


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def double(x: mx.array) -> np.ndarray:
    return np.array(x, dtype=np.float64)


def test_exponential_is_exact_to_a_few_units_in_the_last_place_over_its_range() -> None:
    x = np.linspace(-87.0, 87.0, 20_001, dtype=np.float32)
    error = np.abs(double(reading.exp(mx.array(x))) / np.exp(x.astype(np.float64)) - 1.0)
    assert error[np.abs(x) < 1.0].max() < 3e-7
    assert error.max() < 1e-5  # x * log2(e) is rounded once: half a unit in the last place of 126


@pytest.mark.parametrize("x", [-np.inf, -1e30, -1000.0, -88.0])
def test_exponential_of_what_is_too_small_is_next_to_nothing(x: float) -> None:
    assert 0.0 <= float(reading.exp(mx.array([x]))[0]) < 2e-38


def test_silu_and_sigmoid_are_what_mlx_computes_far_from_zero_too() -> None:
    x = mx.array(np.concatenate([np.linspace(-300.0, 300.0, 4001), random(1, 4000)]).astype(np.float32))
    assert np.abs(double(reading.silu(x)) - double(nn.silu(x))).max() < 1e-6 * 300
    assert np.abs(double(reading.sigmoid(x)) - double(mx.sigmoid(x))).max() < 1e-6
    near = mx.array(random(2, 4000))
    assert np.abs(double(reading.silu(near)) - double(nn.silu(near))).max() < 1e-6


@pytest.mark.parametrize("batch", [1, 2])
def test_convolution_is_that_of_mlx(batch: int) -> None:
    layer = nn.Conv1d(24, 24, 4, groups=24, bias=False)
    window = mx.array(random(3, batch, 40, 24))
    ours = reading.causal_convolution(window, layer.weight)
    assert np.abs(double(ours) - double(layer(window))).max() < 1e-6


def attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """From the definition, in float64: MLX's own is off by 5e-5 behind 9,000 keys, ours by 3e-6."""
    repeat, before = queries.shape[1] // keys.shape[1], keys.shape[2] - queries.shape[2]
    q, k, v = (x.astype(np.float64) for x in (queries, np.repeat(keys, repeat, 1), np.repeat(values, repeat, 1)))
    seen = before + np.arange(q.shape[2])[:, None] >= np.arange(k.shape[2])
    scores = np.where(seen, scale * q @ k.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mean: np.ndarray = weights @ v / weights.sum(axis=-1, keepdims=True)
    return mean


@pytest.mark.parametrize("length", [1, 31, 128, 129, 300])
@pytest.mark.parametrize(
    ("before", "heads", "key_heads"),
    [*((before, *heads) for before in (0, 1, 700) for heads in ((5, 1), (4, 2), (3, 3))), (9000, 4, 2)],
)
def test_attention_is_its_definition(length: int, before: int, heads: int, key_heads: int) -> None:
    queries = 3.0 * random(4, 1, heads, length, 16)
    keys, values = (random(seed, 1, key_heads, before + length, 16) for seed in (5, 6))
    ours = reading.attention(mx.array(queries), mx.array(keys), mx.array(values), 0.25)
    assert np.abs(double(ours) - attention(queries, keys, values, 0.25)).max() < 1e-5


def test_attention_of_two_rows_is_that_of_each() -> None:
    queries, keys, values = random(4, 2, 4, 200, 16), random(5, 2, 2, 900, 16), random(6, 2, 2, 900, 16)
    ours = reading.attention(mx.array(queries), mx.array(keys), mx.array(values), 0.25)
    assert np.abs(double(ours) - attention(queries, keys, values, 0.25)).max() < 1e-5


def test_attention_with_scores_that_exp_could_not_hold() -> None:
    queries, keys, values = (
        np.full((1, 1, 200, 4), 30.0, np.float32),
        30.0 * random(7, 1, 1, 3000, 4),
        random(8, 1, 1, 3000, 4),
    )
    ours = reading.attention(mx.array(queries), mx.array(keys), mx.array(values), 1.0)
    assert np.abs(double(ours) - attention(queries, keys, values, 1.0)).max() < 1e-2  # scores of 10,000 are off by 1e-3


@pytest.mark.parametrize("where", ["queries", "keys", "values"])
def test_what_is_no_number_is_not_hidden_from_those_who_see_it(where: str) -> None:
    arrays = {"queries": random(4, 1, 1, 200, 4), "keys": random(5, 1, 1, 500, 4), "values": random(6, 1, 1, 500, 4)}
    arrays[where][0, 0, 150 if where == "queries" else 450] = np.nan
    ours = double(reading.attention(*(mx.array(arrays[name]) for name in ("queries", "keys", "values")), 0.5))[0, 0]
    assert np.isnan(ours[[150] if where == "queries" else range(150, 200)]).all()


@pytest.fixture(scope="module")
def spec() -> SpecModel:
    return DirectEngine(EngineConfig(cache_bytes=0)).loaded.spec


def read(spec: SpecModel, ids: list[int], chunk: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Hiddens of all tokens, and the recurrent states behind them, read in chunks."""
    state = spec.new_state()
    state.read(True)
    hiddens = []
    for start in range(0, len(ids), chunk):
        tokens = mx.array([ids[start : start + chunk]], dtype=mx.int32)
        hiddens.append(spec.hidden(tokens, state))
        state.clock.advance_all(tokens.shape[1])
        mx.eval(hiddens[-1], state.arrays())
    states = [
        double(cache.state) for cache in state.trunk if isinstance(cache, RecurrentCache) and cache.state is not None
    ]
    return double(mx.concatenate(hiddens, axis=1)), states


@pytest.mark.parametrize(("length", "chunks"), [(100, (1, 7)), (300, (33, 100, 256, 300))])
def test_where_a_prompt_is_cut_changes_no_hidden_and_no_state(
    spec: SpecModel, length: int, chunks: tuple[int, ...]
) -> None:
    """Chunks of fewer than 32 tokens take MLX's own operations, as a step does; longer ones those for reading."""
    ids = [int(token) for token in np.random.default_rng(9).integers(0, 6000, size=length)]
    whole, states = read(spec, ids, 64)
    for chunk in chunks:
        cut, other = read(spec, ids, chunk)
        assert np.abs(cut - whole).max() < 1e-4 * np.abs(whole).max(), chunk
        for ours, theirs in zip(states, other, strict=True):
            assert np.abs(ours - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max()), chunk
