"""What is set aside for rows: enough, for all kinds of caches, and what does not fit waits, or is refused in words."""

import json
import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import pytest
from by_hand import ByHand
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CONFIGS, VOCAB, make, opened, save

from engine import memory
from engine.caches.capacity import capacity
from engine.caches.clock import Clock
from engine.caches.kv import KVCache
from engine.collect import complete, complete_all
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.errors import OutOfMemoryError
from engine.events import Event, FinishEvent, StepEvent
from engine.memory import STATES, WORK, MemoryPlan, RowCost
from engine.models.load import LoadedModel, load
from engine.models.memory import bits_a_value, context_bytes
from engine.models.registry import contract_for
from engine.models.row_cost import row_cost
from engine.profiles import Profile
from engine.request import Request, Sampling

GREEDY = Sampling(temperature=0.0)
KIB, MIB = 2**10, 2**20


def ask(name: str, prompt: int, max_tokens: int | None, **fields: Any) -> Request:
    ids = tuple((17 * place + len(name)) % 250 for place in range(prompt))
    return Request(ids, GREEDY, max_tokens=max_tokens, seed=3, ignore_eos=True, id=name, **fields)


def limit_for(engine: DirectEngine, rows: int, slots: int, spare: int = 16 * KIB) -> int:
    """A memory limit under which so many rows of so many slots just fit."""
    info = engine.loaded.info
    plan = MemoryPlan(1 << 40, info.weight_bytes, row_cost(engine.loaded.spec), info.context)
    return int((plan.batch_bytes(rows, slots) + spare + info.weight_bytes) / (1 - WORK)) + 1


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_plan_counts_the_slots_that_a_cache_allocates(first: int, then: int) -> None:
    cache = KVCache(Clock.zero())
    cache.clock.reading = True
    for length in (first, then):
        cache.update_and_fetch(mx.zeros((1, 1, length, 2)), mx.zeros((1, 1, length, 2)))
        cache.clock.advance_all(length)
    assert {array.shape[2] for array in cache.arrays()} == {capacity(first + then)}


@pytest.mark.parametrize(
    ("prompts", "max_tokens"),
    [
        ((600,) * 4, 20),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (((600,) * 4, 160), ((1900, 30, 30, 30), 60), ((40,) * 8, 200))
        ),
    ],
)
def test_rows_never_take_more_than_was_set_aside(
    direct: DirectEngine, prompts: tuple[int, ...], max_tokens: int
) -> None:
    assert_within_plan(direct.loaded, prompts, max_tokens)


def assert_within_plan(loaded: LoadedModel, prompts: tuple[int, ...], max_tokens: int) -> None:
    """Run such prompts together: their peak would have fitted into the smallest limit that lets them in."""
    # Small chunks: what one of 512 tokens computes with is large beside the caches of so small a model.
    hand = ByHand(loaded, cache_bytes=0, max_rows=len(prompts), profile=Profile("test", chunk=64))
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for place, length in enumerate(prompts):
        hand.add(ask("x" * (place + 1), length, max_tokens))
    hand.turn_until()
    plan = hand.runner.plan
    planned = plan.batch_bytes(len(prompts), max(plan.slots(length, max_tokens) for length in prompts))
    taken = mx.get_peak_memory() - before
    assert plan.weights + taken <= (plan.weights + planned) / (1 - WORK)
    assert taken >= planned / 4, "the plan is so careful that it refuses what would fit"


def both_ways(loaded: LoadedModel, kv_bits: int | None = None) -> tuple[tuple[int | None, int | None], RowCost]:
    config = json.loads((Path(loaded.info.path) / "config.json").read_text())
    text = config.get("text_config") or config
    return context_bytes(text, contract_for(config), with_head=True, kv_bits=kv_bits, native_bits=32), row_cost(
        loaded.spec
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_what_inspect_says_of_a_model_is_what_its_caches_take(family: str, tmp_path: Path) -> None:
    (token, recurrent), cost = both_ways(opened(save(tmp_path / "model", make(family))))
    assert token == cost.token
    assert recurrent is not None
    assert (cost.fixed - STATES * recurrent) % VOCAB == 0


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_packed_keys_and_values_take_what_is_said_and_what_was_set_aside(bits: Literal[4, 8]) -> None:
    loaded = load(EngineConfig(kv_bits=bits))
    (token, _), cost = both_ways(loaded, bits)
    assert token == cost.token
    assert_within_plan(loaded, (700, 700, 40), 12)


def test_bits_of_a_cached_value_count_scale_and_bias() -> None:
    assert bits_a_value(8) == 8.5
    assert bits_a_value(4) == 4.5
    assert bits_a_value(8, native_bits=32) == 9


def test_a_request_that_can_never_fit_is_refused_with_the_figures_and_the_way_on() -> None:
    plan = MemoryPlan(limit=1 << 30, weights=1 << 29, cost=RowCost(token=1 << 16, fixed=MIB), longest=1 << 17)
    plan.check(1000, 1000)
    with pytest.raises(OutOfMemoryError, match=r"A prompt of 5000 tokens with max_tokens 200 needs 1\.00 GiB") as error:
        plan.check(5000, 200)
    text = str(error.value)
    assert "410 MiB are free" in text
    assert f"may have {plan.most_tokens} tokens together" in text
    assert "--kv-bits 8" in text
    plan.check(plan.most_tokens - 100, 100)
    with pytest.raises(OutOfMemoryError):
        plan.check(plan.most_tokens - 100, 101)


def test_weights_that_leave_no_room_are_refused_when_the_model_is_loaded() -> None:
    engine = ThreadEngine(EngineConfig(memory_bytes=50 * MIB))
    with pytest.raises(OutOfMemoryError, match=r"weights take 49 MiB and the limit is 50 MiB"):
        engine.wait_ready(120)
    assert engine.state == "failed"
    engine.close()


@pytest.fixture(scope="module")
def tight(small: DirectEngine) -> Iterator[ThreadEngine]:
    """An engine with memory for one row of 1024 slots, or several of 256."""
    engine = ThreadEngine(
        EngineConfig(small.loaded.info.path, memory_bytes=limit_for(small, 1, 1024), cache_bytes=8 * MIB)
    )
    engine.wait_ready(120)
    yield engine
    assert engine.close(30)


def test_submit_refuses_what_can_never_fit(tight: ThreadEngine) -> None:
    with pytest.raises(OutOfMemoryError, match="1200"):
        tight.submit(ask("large", 1200, 10), lambda event: None)


def test_what_fits_later_waits_and_is_answered_as_ever(tight: ThreadEngine, small: DirectEngine) -> None:
    requests = [ask(name, 520, 12) for name in ("a", "bb", "ccc")]
    alone = [answer.ids for answer in small.run(requests)]
    rows: list[int] = []
    unlisten = tight.listen(lambda event: rows.append(event.rows) if isinstance(event, StepEvent) else None)
    together = complete_all(tight, [replace(request, id=f"again {request.id}") for request in requests])
    unlisten()
    assert [answer.ids for answer in together] == alone
    assert set(rows) == {1}


def test_an_answer_without_a_limit_is_ended_in_words_where_memory_ends(
    small: DirectEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "RESERVE", 150)
    hand = ByHand(small.loaded, memory_bytes=limit_for(small, 1, 512), cache_bytes=0)
    hand.add(ask("endless", 30, None))
    hand.turn_until()
    answer = hand.done["endless"]
    assert answer.finish_reason == "error"
    assert "no memory for more" in (answer.error or "")
    assert 256 < len(answer.ids) < 512, "it grew once"
    hand.add(ask("next", 30, 3))
    hand.turn_until()
    assert hand.done["next"].error is None


def test_prefixes_make_room_for_rows(small: DirectEngine) -> None:
    hand = ByHand(small.loaded, memory_bytes=limit_for(small, 1, 1024), cache_bytes=1 << 30)
    mx.synchronize()
    before = mx.get_active_memory()
    for name in ("a", "bb", "ccc", "dddd"):
        hand.add(ask(name, 800, 20))
        hand.turn_until()
        mx.synchronize()
        assert mx.get_active_memory() - before <= hand.runner.plan.budget
    assert all(answer.error is None for answer in hand.done.values())


def test_cancelled_rows_give_back_what_was_set_aside(tight: ThreadEngine) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for turn in range(6):
        tight.submit(ask(f"gone{turn}", 700, 200), events.put)
        tight.cancel(f"gone{turn}")
    ended = 0
    while ended < 6:
        ended += isinstance(events.get(timeout=60), FinishEvent)
    assert complete(tight, ask("after", 700, 3)).error is None
