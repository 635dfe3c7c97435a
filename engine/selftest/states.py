"""Caches after speculation against caches that were never speculated with."""

import math
from typing import Any

import mlx.core as mx

from engine.caches.kv import KVCache
from engine.caches.recurrent import RecurrentCache
from engine.caches.state import ModelState
from engine.models.load import LoadedModel
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.prompts import PROMPTS
from engine.request import MAX_DEPTH, Request, Sampling
from engine.row import Row
from engine.selftest.check import Check
from engine.step import StepPlan, speculate

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest difference that rounding may make, as a share of the largest value in the array."""
CYCLES = 2
STEPS = 12


def partial_accepts(loaded: LoadedModel) -> list[Check]:
    """Verify blocks of every depth, accept every possible number of drafts, and compare with plain decoding."""
    spec = loaded.spec
    prompt = loaded.chat.render([{"role": "user", "content": PROMPTS[1]}])
    start = _read(spec, prompt)
    recurrent = kv = 0.0
    cases = 0
    for depth in range(1, MAX_DEPTH + 1):
        for accepted in range(depth + 1):
            block_state, plain_state = start.select([0]), start.select([0])
            for cycle in range(CYCLES):
                tokens = [prompt[(7 * cycle + place) % len(prompt)] for place in range(depth + 1)]
                spec.hidden(mx.array([tokens]), block_state)
                block_state.accept(mx.array([accepted + 1], dtype=mx.int32), most=depth + 1)
                for token in tokens[: accepted + 1]:
                    spec.hidden(mx.array([[token]]), plain_state)
                    plain_state.accept(mx.array([1], dtype=mx.int32), most=1)
                mx.eval(block_state.arrays(), plain_state.arrays())
            ours, theirs = difference(block_state, plain_state)
            recurrent, kv, cases = max(recurrent, ours), max(kv, theirs), cases + 1
    tolerance = _tolerance(loaded)
    where = (
        f"largest relative difference over {cases} cases (depth 1 to {MAX_DEPTH}, every accept count, {CYCLES} blocks)"
    )
    checks = [Check("kv_state_after_partial_accept", kv <= tolerance, kv, f"{kv:.2g}, {where}")]
    if any(isinstance(cache, RecurrentCache) for cache in spec.new_state().trunk):
        checks.append(
            Check(
                "recurrent_state_after_partial_accept", recurrent <= tolerance, recurrent, f"{recurrent:.2g}, {where}"
            )
        )
    return checks


def head_cache(loaded: LoadedModel) -> Check:
    """Speculate for some steps, then compare the head's cache with one pass of the head over all hiddens."""
    spec = loaded.spec
    prompt = loaded.chat.render([{"role": "user", "content": PROMPTS[0]}])
    row = Row(
        Request(prompt, Sampling(temperature=0.0)), 0, "mtp", loaded.chat, loaded.info.context, lambda event: None
    )
    prefill = Prefill(spec, row)
    prefill.advance(prefill.total)
    rows = prefill.rows()
    made: list[int] = []
    for step in range(STEPS):
        depth = 1 + step % 4
        outcome = speculate(spec, rows, StepPlan([depth]))
        mx.eval(outcome, rows.arrays())
        numbers: Any = outcome.ints[0].tolist()
        made += numbers[: numbers[2 * depth + 1] + 1]
    tokens = mx.array([[*prompt, *made]])
    scratch = spec.new_state()
    scratch.read(True)
    hidden = spec.hidden(tokens[:, :-1], scratch)
    spec.head_hidden(tokens[:, 1:], hidden, scratch)
    assert rows.backlog is not None
    committed = _length(rows.state.clock.offset) - _length(rows.backlog.fresh)
    worst = max(
        _apart(ours[:, :, :committed], theirs[:, :, :committed])
        for mine, other in zip(rows.state.head, scratch.head, strict=True)
        for ours, theirs in zip(mine.arrays(), other.arrays(), strict=True)
    )
    detail = f"{worst:.2g}, largest relative difference over {committed} positions after {STEPS} steps of depth 1 to 4"
    return Check("head_kv_equals_from_scratch", worst <= _tolerance(loaded), worst, detail)


def difference(one: ModelState, other: ModelState) -> tuple[float, float]:
    """(recurrent, KV): the largest relative difference between the committed parts of two states of one row."""
    length = _length(other.clock.offset)
    recurrent = kv = 0.0
    for mine, theirs in zip(one.trunk, other.trunk, strict=True):
        if isinstance(mine, KVCache) and isinstance(theirs, KVCache):
            for a, b in zip(mine.unpacked(), theirs.unpacked(), strict=True):
                kv = max(kv, _apart(a[:, :, :length], b[:, :, :length]))
        else:
            for a, b in zip(mine.arrays(), theirs.arrays(), strict=True):
                recurrent = max(recurrent, _apart(a, b))
    return recurrent, kv


def _read(spec: SpecModel, prompt: tuple[int, ...]) -> ModelState:
    state = spec.new_state()
    state.read(True)
    spec.hidden(mx.array([prompt]), state)
    state.clock.advance_all(len(prompt))
    state.read(False)
    return state


def _apart(a: mx.array, b: mx.array) -> float:
    """The largest difference as a share of the largest value; infinite where a number is missing."""
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    share: Any = (mx.abs(a - b).max() / mx.maximum(mx.abs(b).max(), 1e-9)).item()
    return float(share) if math.isfinite(share) else math.inf


def _length(one_row: mx.array) -> int:
    length: Any = one_row.item()
    return int(length)


def _tolerance(loaded: LoadedModel) -> float:
    rounding = TOLERANCE.get(loaded.info.dtype, 5e-2)
    caches = [cache for cache in loaded.spec.new_state().trunk if isinstance(cache, KVCache)]
    return max([rounding, *(cache.packing.step for cache in caches if cache.packing is not None)])
