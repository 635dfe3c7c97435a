"""A model with quantised keys and values is a model like another: drafts, batches and chunks change nothing it says."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.base import scaled_dot_product_attention
from tiny_models import make, save

from engine.caches.clock import Clock
from engine.caches.kv import KVCache
from engine.caches.packing import GROUPS, Packing
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.errors import UnsupportedModelError
from engine.models.load import load
from engine.models.spec import SpecModel
from engine.prompts import PROMPTS
from engine.request import Request, Sampling
from engine.selftest.states import partial_accepts

SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=40))
LONG = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 12
BITS: tuple[Any, ...] = (8, 4)


@pytest.fixture(scope="module", params=BITS)
def engine(request: pytest.FixtureRequest) -> DirectEngine:
    return DirectEngine(EngineConfig(kv_bits=request.param, cache_bytes=0))


def ask(engine: DirectEngine, text: str, sampling: Sampling, **changes: Any) -> Request:
    ids = engine.loaded.chat.render([{"role": "user", "content": text}])
    return replace(Request(ids, sampling, max_tokens=40, seed=7), **changes)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("depths", [(4,), pytest.param((1, 2, 3), marks=pytest.mark.slow)])
def test_seeded_text_is_the_same_at_every_depth_alone_and_in_a_batch(
    engine: DirectEngine, depths: tuple[int, ...], sampling: Sampling
) -> None:
    requests = [ask(engine, text, sampling, seed=n, max_tokens=24) for n, text in enumerate(PROMPTS[:3])]
    plain = [engine.run([replace(request, depth=0)])[0].ids for request in requests]
    for depth in depths:
        assert engine.run([replace(requests[0], depth=depth)])[0].ids == plain[0]
    batch = [replace(request, depth=n + 1, id=f"b{n}") for n, request in enumerate(requests)]
    assert [answer.ids for answer in engine.run(batch)] == plain


def test_states_after_any_count_of_accepted_drafts_are_those_of_plain_decoding(
    engine: DirectEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.selftest.states.MAX_DEPTH", 3)
    assert [check for check in partial_accepts(engine.loaded) if not check.passed] == []


def test_logits_after_a_partial_accept_are_those_of_plain_decoding(engine: DirectEngine) -> None:
    spec, (prompt, block) = engine.loaded.spec, ([*range(300, 340)], [7, 8, 9, 10])
    drafted, plain = spec.new_state(), spec.new_state()
    for state in (drafted, plain):
        read(spec, state, prompt, 64)
    spec.hidden(mx.array([block]), drafted)
    drafted.accept(mx.array([2], dtype=mx.int32), most=len(block))
    for token in block[:2]:
        spec.hidden(mx.array([[token]]), plain)
        plain.accept(mx.array([1], dtype=mx.int32), most=1)
    ours, theirs = (spec.logits(spec.hidden(mx.array([[11, 12]]), state)) for state in (drafted, plain))
    assert float(mx.abs(ours - theirs).max()) < 0.02 * float(mx.abs(theirs).max())


def read(spec: SpecModel, state: Any, prompt: list[int], chunk: int) -> None:
    state.read(True)
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        spec.hidden(mx.array([part]), state)
        state.clock.advance_all(len(part))
        mx.eval(state.arrays())
    state.read(False)


def test_what_is_kept_of_a_prompt_does_not_depend_on_its_chunks(engine: DirectEngine) -> None:
    """All but the few values that rounding tips from one code to the next."""
    spec, draw = engine.loaded.spec, random.Random(0)
    prompt = [draw.randrange(50, 5000) for _ in range(500)]
    kept = []
    for chunk in (500, 97, 33):
        state = spec.new_state()
        read(spec, state, prompt, chunk)
        caches = [cache for cache in state.trunk if isinstance(cache, KVCache)]
        kept.append([x[:, :, : len(prompt)] for cache in caches for x in cache.unpacked()])
    packing = caches[0].packing
    assert packing is not None
    for other in kept[1:]:
        for place, (ours, theirs) in enumerate(zip(kept[0], other, strict=True)):
            apart = mx.abs(ours - theirs)
            assert float(apart.max()) <= 1.5 * packing.step * float(mx.abs(theirs).max())
            most = 1e-3 if place < 2 else 0.05  # one code that tips in the first layer moves many a little above it
            assert float((apart > 1e-4).mean()) < most


def test_a_second_turn_from_the_bank_says_what_a_cold_one_says(engine: DirectEngine) -> None:
    (packing,) = packings(engine)
    warm = DirectEngine(EngineConfig(kv_bits=packing.bits))
    warm.run([ask(warm, LONG + PROMPTS[0], SAMPLINGS[0], max_tokens=4)])
    for number, sampling in enumerate(SAMPLINGS):
        request = ask(warm, LONG + PROMPTS[1], sampling, id=f"s{number}")
        (again,) = warm.run([request])
        (cold,) = engine.run([request])
        assert again.ids == cold.ids
    assert again.usage.cached_tokens > 100


def packings(engine: DirectEngine) -> set[Packing]:
    caches = [cache for cache in engine.loaded.spec.new_state().trunk if isinstance(cache, KVCache)]
    assert all(cache.packing is None for cache in engine.loaded.spec.new_state().head)
    return {cache.packing for cache in caches if cache.packing is not None}


def test_it_is_smaller_and_says_how_much(engine: DirectEngine, direct: DirectEngine) -> None:
    packed, plain = (sum(a.nbytes for a in trunk(e)) for e in (engine, direct))
    bits = int(engine.loaded.info.kv[0])
    assert packed / plain == pytest.approx((bits + 1) / 32)  # float32 on the CPU: 64 codes, a scale and a bias
    assert engine.loaded.info.kv == f"{bits}-bit, {(bits + 1) / 32:.2f} of the size"
    assert direct.loaded.info.kv == "float32"


def trunk(engine: DirectEngine) -> list[mx.array]:
    state = engine.loaded.spec.new_state()
    read(engine.loaded.spec, state, [*range(50, 90)], 64)
    return [array for cache in state.trunk if isinstance(cache, KVCache) for array in cache.arrays()]


def test_drafts_are_accepted_as_often(engine: DirectEngine, direct: DirectEngine) -> None:
    steps = [0, 0]
    for place, who in enumerate((engine, direct)):
        for text in PROMPTS[:3]:
            (answer,) = who.run([ask(who, text, SAMPLINGS[0], depth=3, max_tokens=64)])
            steps[place] += answer.stats.steps
    assert steps[0] <= 1.15 * steps[1]


@pytest.mark.parametrize("bits", BITS)
@given(seed=st.integers(0, 2**32), cut=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_a_token_is_packed_alone(bits: Any, seed: int, cut: int) -> None:
    packing = Packing.of(bits, 64, product=False)
    x = mx.random.normal((1, 2, 21, 64), key=mx.random.key(seed))
    whole, first, second = packing.pack(x), packing.pack(x[:, :, :cut]), packing.pack(x[:, :, cut:])
    for one, a, b in zip(whole, first, second, strict=True):
        assert mx.array_equal(one, mx.concatenate([a, b], axis=2))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("product", [True, False])
def test_a_token_sees_its_own_block_as_later_ones_will(bits: Any, product: bool) -> None:
    packing = Packing.of(bits, 64, product=product)
    cache = KVCache(Clock(mx.array([5, 0], dtype=mx.int32), 5), packing)
    draw = mx.random.split(mx.random.key(0), 2)
    blocks = [mx.random.normal((2, 1, 4, 64), key=key) for key in draw]

    def seen(block: mx.array) -> list[mx.array]:
        fetched = cache.update_and_fetch(block, -block)
        return [packing.unpack(x) if isinstance(x, tuple) else x for x in fetched]

    first = seen(blocks[0])
    cache.clock.advance(mx.array([4, 4], dtype=mx.int32), 4)
    for before, after in zip(first, seen(blocks[1]), strict=True):
        for row, start in enumerate((5, 0)):
            own = before[row, :, start : start + 4]
            assert mx.array_equal(own, after[row, :, start : start + 4])
            assert 0 < float(mx.abs(mx.abs(own) - mx.abs(blocks[0][row])).max()) < 1  # packed, but the same tokens


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [32, 64, 96, 256])
def test_attention_by_packed_products_is_attention_over_what_they_stand_for(bits: Any, width: int) -> None:
    """Ragged rows, several query heads a key head, blocks and prompts: the way of GPUs against the way of CPUs."""
    draw = mx.random.split(mx.random.key(width), 8)

    def attend(product: bool) -> list[mx.array]:
        clock = Clock(mx.array([5, 17, 0], dtype=mx.int32), 17)
        cache = KVCache(clock, Packing.of(bits, width, product=product))
        outputs = []
        for block, kept in enumerate(([3, 1, 2], [1, 4, 4])):
            q = mx.random.normal((3, 6, 4, width), key=draw[block])
            k, v = (mx.random.normal((3, 2, 4, width), key=draw[2 * block + n]) for n in (2, 3))
            mask = cache.make_mask(4)
            outputs.append(scaled_dot_product_attention(q, *cache.update_and_fetch(k, v), cache, 0.1, mask))
            clock.advance(mx.array(kept, dtype=mx.int32), 4)
        alone = KVCache(Clock.zero(), cache.packing)
        alone.clock.reading = True
        q, k, v = (mx.random.normal((1, heads, 9, width), key=draw[6]) for heads in (6, 2, 2))
        outputs.append(scaled_dot_product_attention(q, *alone.update_and_fetch(k, v), alone, 0.1, alone.make_mask(9)))
        return outputs

    for ours, theirs in zip(attend(True), attend(False), strict=True):
        assert float(mx.abs(ours - theirs).max()) < 1e-4


def test_heads_that_no_group_divides_are_refused_by_name(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", make("qwen3_5"))
    with pytest.raises(UnsupportedModelError, match=r"16 values wide.*64 or 32.*--kv-bits"):
        load(EngineConfig(model=str(folder), kv_bits=8))


@pytest.mark.parametrize("family", ["qwen3_next", "llama"])
def test_other_families_and_groups_of_32(family: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", make(family, head_dim=32))
    engine = DirectEngine(EngineConfig(model=str(folder), kv_bits=8, cache_bytes=0))
    assert [packing.group for packing in packings(engine)] == [GROUPS[-1]]
    request = Request(tuple(range(40, 90)), SAMPLINGS[1], max_tokens=24, seed=5, ignore_eos=True)
    plain, drafted = (engine.run([replace(request, depth=depth)])[0].ids for depth in (0, 3))
    assert plain == drafted
    assert len(plain) == 24
