"""The chunked gated delta rule against the recurrence itself, written out token by token in float64."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_ops

from engine.device import is_cuda
from engine.kernels import delta

Inputs = dict[str, np.ndarray]
DIM_K, DIM_V, HEADS, KEY_HEADS, BATCH = 8, 6, 4, 2, 2


def inputs(seed: int, length: int, key_heads: int = KEY_HEADS, log_g: float | None = None) -> Inputs:
    """Random tokens; keys of unit norm, decays between 0.05 and 1 unless `log_g` names one for all."""
    rng = np.random.default_rng(seed)
    k = rng.normal(size=(BATCH, length, key_heads, DIM_K))
    q = rng.normal(size=(BATCH, length, key_heads, DIM_K)) * DIM_K**-0.5
    decay = -rng.uniform(0.0, 3.0, size=(BATCH, length, HEADS)) if log_g is None else log_g
    tokens = {
        "q": q,
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.normal(size=(BATCH, length, HEADS, DIM_V)),
        "log_g": np.broadcast_to(decay, (BATCH, length, HEADS)),
        "beta": rng.uniform(0.0, 1.0, size=(BATCH, length, HEADS)),
    }
    return {name: array.astype(np.float32) for name, array in tokens.items()}


def random_state(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, HEADS, DIM_V, DIM_K)).astype(np.float32)


def recurrence(state: np.ndarray, tokens: Inputs) -> tuple[np.ndarray, list[np.ndarray]]:
    """(outputs, state after each token), float64, straight from the definition."""
    x = {name: array.astype(np.float64) for name, array in tokens.items()}
    repeat = HEADS // x["k"].shape[2]
    k, q = (np.repeat(x[name], repeat, axis=2) for name in ("k", "q"))
    state, outputs, states = state.astype(np.float64), [], []
    for t in range(k.shape[1]):
        decayed = np.exp(x["log_g"][:, t])[..., None, None] * state
        known = np.einsum("bhvk,bhk->bhv", decayed, k[:, t])
        u = x["beta"][:, t][..., None] * (x["v"][:, t] - known)
        state = decayed + u[..., None] * k[:, t][:, :, None, :]
        outputs.append(np.einsum("bhvk,bhk->bhv", state, q[:, t]))
        states.append(state)
    return np.stack(outputs, axis=1), states


def on_device(tokens: Inputs) -> list[mx.array]:
    return [mx.array(tokens[name]) for name in ("q", "k", "v", "log_g", "beta")]


def apart(ours: mx.array, theirs: np.ndarray) -> float:
    """Largest difference, as a share of the largest value; infinite where ours holds a value that is not finite."""
    difference = np.abs(np.array(ours, dtype=np.float64) - theirs)
    return float(difference.max() / max(1.0, np.abs(theirs).max())) if np.isfinite(difference).all() else np.inf


LENGTHS = [*range(1, 10), 31, 32, 33, 70]


@pytest.mark.parametrize("length", [*LENGTHS, 131, 320])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_prefill_is_the_recurrence(length: int, key_heads: int) -> None:
    tokens, start = inputs(length, length, key_heads), random_state(length)
    y, state = delta.prefill(mx.array(start), *on_device(tokens))
    expected, states = recurrence(start, tokens)
    assert apart(y, expected) < 2e-5
    assert apart(state, states[-1]) < 2e-5


@pytest.mark.parametrize("length", LENGTHS)
def test_a_block_committed_in_part_leaves_the_state_of_the_tokens_kept(length: int) -> None:
    tokens, start = inputs(100 + length, length), random_state(length)
    y, block = delta.read(mx.array(start), *on_device(tokens))
    expected, states = recurrence(start, tokens)
    assert apart(y, expected) < 2e-5
    for kept in range(1, length + 1):
        other = 1 + (kept + length // 2) % length  # rows of a batch keep different numbers
        state = block.commit(mx.array(start), mx.array([kept, other], dtype=mx.int32))
        assert apart(state, np.stack([states[kept - 1][0], states[other - 1][1]])) < 2e-5


@pytest.mark.parametrize("length", [1, 5, 32, 70])
def test_what_mlx_lm_computes(length: int) -> None:
    tokens, start = inputs(200 + length, length), random_state(length)
    q, k, v, log_g, beta = on_device(tokens)
    y, state = delta.prefill(mx.array(start), q, k, v, log_g, beta)
    their_y, their_state = gated_delta_ops(q, k, v, mx.exp(log_g), beta, mx.array(start))
    assert apart(y, np.array(their_y)) < 2e-5
    assert apart(state, np.array(their_state)) < 2e-5


@pytest.mark.parametrize("log_g", [0.0, -1e-6, -10.0, -50.0, -500.0])
@pytest.mark.parametrize("length", [1, 5, 32, 70])
def test_decays_at_the_ends_of_their_range(log_g: float, length: int) -> None:
    tokens, start = inputs(300 + length, length, log_g=log_g), random_state(length)
    y, state = delta.prefill(mx.array(start), *on_device(tokens))
    expected, states = recurrence(start, tokens)
    assert apart(y, expected) < 1e-4
    assert apart(state, states[-1]) < 1e-4


def test_a_token_that_forgets_all_between_tokens_that_forget_nothing() -> None:
    tokens, start = inputs(4, 70, log_g=0.0), random_state(4)
    tokens["log_g"] = tokens["log_g"].copy()
    tokens["log_g"][:, [3, 20, 40]] = -80.0
    y, state = delta.prefill(mx.array(start), *on_device(tokens))
    expected, states = recurrence(start, tokens)
    assert apart(y, expected) < 1e-4
    assert apart(state, states[-1]) < 1e-4


@pytest.mark.parametrize("length", [8, 9, 32, 70, 320])
def test_one_key_over_and_over_does_not_overflow(length: int) -> None:
    """Keys all the same, full write strength, no decay: the power series of a triangle of 32 would reach C(32, 16)."""
    tokens, start = inputs(5, length, log_g=0.0), random_state(5)
    tokens["k"] = np.broadcast_to(tokens["k"][:, :1], tokens["k"].shape)
    tokens["beta"] = np.ones_like(tokens["beta"])
    y, state = delta.prefill(mx.array(start), *on_device(tokens))
    expected, states = recurrence(start, tokens)
    assert apart(y, expected) < 1e-4
    assert apart(state, states[-1]) < 1e-4


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("log_g", [None, 0.0])
def test_many_cycles_of_partial_accepts_do_not_drift(depth: int, log_g: float | None) -> None:
    """200 blocks of depth + 1 tokens, of which each row keeps from 1 to all: the state is that of the kept tokens."""
    cycles, length = 200, depth + 1
    tokens = inputs(depth, cycles * length, log_g=log_g)
    state, plain = mx.array(random_state(depth)), random_state(depth).astype(np.float64)
    rng = np.random.default_rng(depth)
    for cycle in range(cycles):
        part = {name: array[:, cycle * length : (cycle + 1) * length] for name, array in tokens.items()}
        kept = rng.integers(1, length + 1, size=BATCH)
        if cycle < length:
            kept[0] = cycle + 1  # every count at least once
        _, block = delta.read(state, *on_device(part))
        state = block.commit(state, mx.array(kept, dtype=mx.int32))
        _, states = recurrence(plain, part)
        plain = np.stack([states[kept[row] - 1][row] for row in range(BATCH)])
    assert apart(state, plain) < 1e-4


@pytest.mark.parametrize("cuts", [(1, 319), (31, 289), (33, 32, 255), (100, 100, 120)])
def test_where_a_prompt_is_cut_does_not_matter_to_its_states(cuts: tuple[int, ...]) -> None:
    tokens, state, start = inputs(8, 320), mx.array(random_state(8)), 0
    expected, states = recurrence(random_state(8), tokens)
    for cut in cuts:
        part = {name: array[:, start : start + cut] for name, array in tokens.items()}
        q, k, v, log_g, beta = on_device(part)
        y, state = delta.prefill(state, q, k, v, log_g, beta)
        assert apart(y, expected[:, start : start + cut]) < 2e-5
        start += cut
        assert apart(state, states[start - 1]) < 2e-5


def test_reading_a_block_leaves_the_state_as_it_was() -> None:
    tokens, state = inputs(6, 5), mx.array(random_state(6))
    mx.eval(delta.read(state, *on_device(tokens)))
    assert np.array_equal(np.array(state), random_state(6))


def test_outputs_come_in_the_type_of_the_values_and_the_state_in_float32() -> None:
    tokens, state = inputs(7, 40), mx.array(random_state(7))
    *wide, log_g, beta = on_device(tokens)
    q, k, v = (x.astype(mx.bfloat16) for x in wide)
    y, after = delta.prefill(state, q, k, v, log_g, beta)
    assert y.dtype == mx.bfloat16
    assert after.dtype == mx.float32
    expected, _ = recurrence(random_state(7), tokens)
    assert apart(y.astype(mx.float32), expected) < 0.05


@pytest.mark.parametrize("size", range(1, 65))
def test_inverse_of_a_unit_triangle(size: int) -> None:
    lower = np.tril(np.random.default_rng(size).uniform(-0.6, 0.6, size=(3, size, size)), -1).astype(np.float32)
    inverse = delta.unit_lower_inverse(mx.array(lower))
    expected = np.linalg.inv(np.eye(size) + lower.astype(np.float64))
    assert apart(inverse, expected) < (1e-3 if is_cuda() else 1e-5)  # TF32


@pytest.mark.parametrize("size", [7, 8, 9, 31, 32, 64])
def test_inverse_of_a_triangle_of_ones(size: int) -> None:
    """(I + L)^-1 has 1 on the diagonal, -1 beside it and 0 elsewhere, though the powers of L grow like binomials."""
    inverse = delta.unit_lower_inverse(mx.tril(mx.ones((size, size)), -1))
    assert apart(inverse, np.eye(size) - np.eye(size, k=-1)) < 1e-5
