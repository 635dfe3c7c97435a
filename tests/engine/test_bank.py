"""What was read before is not read again, and nothing that is said depends on it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
import tiny_models
from tiny_models import EOS

from engine.caches.bank import INTERVAL, SHORTEST, Bank, checkpoints
from engine.config import EngineConfig, Mode
from engine.direct import DirectEngine
from engine.events import Event, PrefillEvent
from engine.prefill import Prefill
from engine.request import Request, Sampling
from engine.row import Row
from engine.selftest.states import difference

GREEDY = Sampling(temperature=0.0)
SEEDED = Sampling(temperature=0.8, top_k=20)
THINK = 6139
LONG = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 12


def fresh(small: DirectEngine, cache_bytes: int = 1 << 30) -> DirectEngine:
    return DirectEngine(EngineConfig(model=small.loaded.info.path, cache_bytes=cache_bytes))


@pytest.fixture(scope="module")
def warm(small: DirectEngine) -> DirectEngine:
    return fresh(small)


def chat(engine: DirectEngine, *turns: str) -> tuple[int, ...]:
    roles = ["user", "assistant"]
    return engine.loaded.chat.render([{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)])


def read(engine: DirectEngine, prompt: Sequence[int], bank: Bank | None) -> Prefill:
    row = Row(Request(tuple(prompt), GREEDY), 0, "mtp", engine.loaded.chat, 2048, lambda event: None)
    prefill = Prefill(engine.loaded.spec, row, bank, engine.loaded.chat.eos_ids)
    while not prefill.finished:
        prefill.advance(97)
    return prefill


def test_a_second_turn_reads_only_what_is_new_and_says_what_a_cold_one_says(
    warm: DirectEngine, small: DirectEngine
) -> None:
    cold = fresh(small, cache_bytes=0)
    first = chat(warm, LONG + "What is 47 + 85?")
    warm.run([Request(first, GREEDY, max_tokens=20)])
    second = chat(warm, LONG + "What is 47 + 85?", "47 + 85 is 132.", "And 12 + 30?")
    for number, sampling in enumerate((GREEDY, SEEDED)):
        request = Request(second, sampling, max_tokens=40, seed=3, id=f"s{number}")
        (again,), (anew,) = warm.run([request]), cold.run([request])
        assert again.ids == anew.ids
        assert again.usage.cached_tokens > 0.8 * len(first)
        assert anew.usage.cached_tokens == 0


def test_acceptance_does_not_fall_after_a_warm_start(warm: DirectEngine) -> None:
    prompt = chat(warm, LONG + "Sort these numbers: 42, 7, 19, 3.")
    cold, again = (warm.run([Request(prompt, GREEDY, depth=3, max_tokens=60, id=i)])[0] for i in ("cold", "again"))
    assert again.usage.cached_tokens > 0
    assert again.stats.accepted_by_depth == cold.stats.accepted_by_depth


@pytest.mark.parametrize("seed", range(4))
def test_restored_caches_are_those_of_a_cold_read(warm: DirectEngine, seed: int) -> None:
    draw, bank = random.Random(seed), Bank(1 << 30)
    stem = [draw.randrange(250) for _ in range(draw.randint(40, 200))]
    for _ in range(5):
        tail = [draw.randrange(250) for _ in range(draw.randint(2, 150))]
        turns = [*stem, EOS, *tail[: len(tail) // 2], EOS, *tail[len(tail) // 2 :]]
        with_bank, without = read(warm, turns, bank), read(warm, turns, None)
        ours, theirs = with_bank.rows(), without.rows()
        assert max(difference(ours.state, theirs.state)) < 1e-4
        assert ours.state.clock.offset.item() == theirs.state.clock.offset.item() == len(turns) - 1
        rows = len(turns) - 2
        assert ours.state.head_clock.offset.item() == theirs.state.head_clock.offset.item() == rows
        for a, b in zip(ours.state.head[0].arrays(), theirs.state.head[0].arrays(), strict=True):
            assert float(mx.abs(a[:, :, :rows] - b[:, :, :rows]).max()) < 1e-3
        stem = draw.choice([stem, turns])


def test_two_conversations_share_their_beginning_and_do_not_disturb_each_other(warm: DirectEngine) -> None:
    bank = Bank(1 << 30)
    system = [*range(200), EOS]
    one, other = [*system, *range(50, 150), EOS, 7, 8], [*system, *range(150, 250), EOS, 7, 8]
    read(warm, one, bank)
    alone = bank.nbytes
    assert read(warm, other, bank).cached == len(system)
    assert bank.nbytes < 1.9 * alone
    for prompt in (one, other):
        again = read(warm, prompt, bank)
        assert again.cached == len(prompt) - 2
        assert max(difference(again.rows().state, read(warm, prompt, None).rows().state)) < 1e-4


def test_the_budget_holds_and_the_beginning_outlives_the_ends(warm: DirectEngine) -> None:
    system = [*range(250), *range(50), EOS]
    probe = Bank(1 << 30)
    read(warm, [*system, *range(100), EOS, 7, 8], probe)
    bank = Bank(2 * probe.nbytes)
    for start in range(0, 140, 7):
        read(warm, [*system, *range(start, start + 100), EOS, 7, 8], bank)
        assert bank.nbytes <= 2 * probe.nbytes
    assert bank.find([*system, 1, 2, 3]).node.end == len(system)


def test_a_miss_says_why(warm: DirectEngine) -> None:
    bank, prompt = Bank(1 << 30), [*range(100, 200), EOS, 5, 6]
    assert bank.find(prompt).reason == "nothing cached yet"
    read(warm, prompt, bank)
    changed = [*prompt[:50], 9, *prompt[51:]]
    assert "token 50" in bank.find(changed).reason
    bank.clear()
    assert bank.find(prompt).node.end == 0


def test_events_and_usage_tell_what_was_cached(warm: DirectEngine) -> None:
    prompt = chat(warm, LONG + "Tell me about yourself.")
    events: list[Event] = []
    warm.run([Request(prompt, GREEDY, max_tokens=2)])
    (answer,) = warm.run([Request(prompt, GREEDY, max_tokens=2)], events.append)
    read_events = [event for event in events if isinstance(event, PrefillEvent)]
    assert read_events[-1].cached == answer.usage.cached_tokens > 0
    assert read_events[-1].done == read_events[-1].total == len(prompt) - 1


def test_checkpoints_are_at_turns_and_intervals_and_never_close_together() -> None:
    prompt = [5] * 6000
    for place in (300, 310, 4000, 5900):
        prompt[place] = EOS
    assert checkpoints(prompt, frozenset({EOS}), 0) == [301, INTERVAL, 2 * INTERVAL, 5901, 5999]
    assert checkpoints(prompt, frozenset({EOS}), 301) == [INTERVAL, 2 * INTERVAL, 5901, 5999]
    assert checkpoints([5] * 200_001, frozenset(), 0) == [*range(8 * INTERVAL, 200_000, 8 * INTERVAL), 200_000]
    assert checkpoints([5] * (SHORTEST - 3) + [EOS, 5, 5], frozenset({EOS}), 0) == []
    turn = [5] * 60 + [EOS, 5, 5, 5, 5, THINK, 5]
    assert checkpoints(turn, frozenset({EOS}), 0, THINK) == [61, 65], "before the thinking, which the next turn drops"
    assert checkpoints([5] * 900 + turn, frozenset({EOS}), 0, THINK) == [961], "four tokens are less than they cost"


@pytest.mark.parametrize("mode", ["mtp", "ar"])
def test_a_model_without_recurrent_layers_goes_on_at_any_token(mode: Mode, tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.make("llama"))
    settings = {"model": str(folder), "mode": mode}
    warm, cold = (DirectEngine(EngineConfig(cache_bytes=size, **settings)) for size in (1 << 30, 0))
    draw = random.Random(4)
    first = [*draw.choices(range(250), k=120), tiny_models.EOS, *draw.choices(range(250), k=300), tiny_models.EOS, 1, 2]
    warm.run([Request(tuple(first), GREEDY, max_tokens=2)])
    for number, place in enumerate((1, 119, 120, 121, 300, 421, 422)):
        edited = (*first[:place], 255, *draw.choices(range(250), k=40), tiny_models.EOS, 1, 2)
        request = Request(edited, SEEDED, max_tokens=16, seed=3, depth=3 if mode == "mtp" else None, id=str(number))
        (again,), (anew,) = warm.run([request]), cold.run([request])
        assert again.ids == anew.ids, place
        assert again.stats.accepted_by_depth == anew.stats.accepted_by_depth
        assert again.usage.cached_tokens >= place - 1 - SHORTEST
    shorter = Request(tuple(first[:300]), SEEDED, max_tokens=30, seed=3, id="shorter")
    (again,), (anew,) = warm.run([shorter]), cold.run([shorter])
    assert (again.ids, again.usage.cached_tokens) == (anew.ids, 298)


def test_caches_cut_at_any_token_are_those_of_a_cold_read(tmp_path: Path) -> None:
    engine = DirectEngine(EngineConfig(model=str(tiny_models.save(tmp_path / "model", tiny_models.make("llama")))))
    draw, bank = random.Random(4), Bank(1 << 30)
    first = [*draw.choices(range(250), k=100), tiny_models.EOS, *draw.choices(range(250), k=200), tiny_models.EOS, 1, 2]
    read(engine, first, bank)
    for place in (50, 101, 140, 250):
        prompt = [*first[:place], 255, *draw.choices(range(250), k=60)]
        warm, cold = read(engine, prompt, bank), read(engine, prompt, None)
        assert warm.cached == (101 if place == 101 else place - 1)
        ours, theirs = warm.rows().state, cold.rows().state
        assert max(difference(ours, theirs)) < 1e-4
        assert ours.head_clock.offset.item() == theirs.head_clock.offset.item() == len(prompt) - 2
        for a, b in zip(ours.head[0].arrays(), theirs.head[0].arrays(), strict=True):
            rows = len(prompt) - 2
            assert float(mx.abs(a[:, :, :rows] - b[:, :, :rows]).max()) < 1e-4


def test_batches_of_warm_and_cold_rows_say_what_they_say_alone(warm: DirectEngine, small: DirectEngine) -> None:
    prompts = [chat(warm, LONG[: 200 * n] + "What is 3 + 4?") for n in (1, 2, 3)] * 2
    requests = [Request(p, SEEDED, max_tokens=16, seed=n, depth=n % 4) for n, p in enumerate(prompts)]
    together = warm.run(requests)
    cold = fresh(small, cache_bytes=0)
    alone = [cold.run([replace(request, id=f"a{n}")])[0] for n, request in enumerate(requests)]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]
