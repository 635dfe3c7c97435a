"""Two threads that read a prompt leave what one would, whatever happens to either."""

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tiny_models import make, save

from engine.caches.bank import Bank
from engine.collect import Answer, Completion
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.events import Event, FinishEvent, PrefillEvent
from engine.models.load import LoadedModel, load
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.readers import GRAIN, SHORTEST, Readers, read
from engine.request import Request, Sampling
from engine.row import Row

FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "llama")
SECOND = "second reader"
GREEDY = Sampling(temperature=0.0)


class Boom(Exception):
    """Raised on purpose."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """Tiny models by their family and other settings, each loaded once."""
    folder, models = tmp_path_factory.mktemp("readers"), {}

    def get(family: str = "qwen3_5", **settings: Any) -> LoadedModel:
        key = (family, *sorted(settings.items()))
        if key not in models:
            sizes = {"hidden_size": 64, "head_dim": 32} if "kv_bits" in settings else {}
            path = save(folder / f"{len(models)}", make(family, **sizes))
            models[key] = load(EngineConfig(model=str(path), **settings))
        return models[key]

    return get


@pytest.fixture(scope="module")
def spec(loaded: Callable[..., LoadedModel]) -> SpecModel:
    return loaded().spec


@pytest.fixture
def readers(spec: SpecModel) -> Iterator[Readers]:
    before, readers = seconds(), Readers(spec)
    yield readers
    readers.close()
    assert seconds() <= before


def seconds() -> set[threading.Thread]:
    """Second readers that are alive, those of engines that other tests share among them."""
    return {thread for thread in threading.enumerate() if thread.name == SECOND}


def draw(length: int, seed: int = 0) -> list[int]:
    return [random.Random(f"{seed} {place}").randrange(250) for place in range(length)]


def after(spec: SpecModel, blocks: Sequence[Sequence[int]], readers: Readers | None) -> list[np.ndarray]:
    """All caches, clocks and hiddens once a prompt was read, by two readers or by one; this takes the same halves."""
    state = spec.new_state()
    state.read(True)
    hidden, hiddens = None, []
    for block in blocks:
        half = -(-len(block) // (2 * GRAIN)) * GRAIN
        for part in [block] if readers is not None else [block[:half], block[half:]]:
            tokens = mx.array([part], dtype=mx.int32)
            whole = read(spec, tokens, hidden, state) if readers is None else readers.read(tokens, hidden, state)
            hidden = whole[:, -1:]
            mx.eval(whole, state.arrays())
            hiddens.append(whole)
    assert {cache.clock for cache in state.trunk} == {state.clock}
    assert {cache.clock for cache in state.head} <= {state.head_clock}
    bounds = mx.array([state.clock.bound, state.head_clock.bound])
    return [np.array(x) for x in (mx.concatenate(hiddens, axis=1), bounds, *state.arrays())]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lengths", [(256,), (300, 511), (512, 257, 256)])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_readers_leave_the_bits_that_one_leaves(
    loaded: Callable[..., LoadedModel], family: str, lengths: tuple[int, ...]
) -> None:
    spec = loaded(family).spec
    blocks = [draw(length, seed) for seed, length in enumerate(lengths)]
    readers = Readers(spec)
    assert_same(after(spec, blocks, readers), after(spec, blocks, None))
    readers.close()


@pytest.mark.parametrize("settings", [{"kv_bits": 8}, {"kv_bits": 4}, {"mode": "ar"}], ids=str)
def test_quantised_caches_and_a_missing_head_make_no_difference(
    loaded: Callable[..., LoadedModel], settings: dict[str, Any]
) -> None:
    spec = loaded(**settings).spec
    readers = Readers(spec)
    blocks = [draw(300), draw(256, 1)]
    assert_same(after(spec, blocks, readers), after(spec, blocks, None))
    readers.close()


def test_what_comes_from_the_bank_is_read_on_from_by_both(loaded: Callable[..., LoadedModel], readers: Readers) -> None:
    model, stem = loaded(), draw(200)
    states = []
    for second in (readers, None):
        bank = Bank(1 << 30)
        for prompt in (stem, [*stem, *draw(700, 1)]):
            row = Row(Request(tuple(prompt), GREEDY), 0, "mtp", model.chat, 1024, lambda event: None)
            prefill = Prefill(model.spec, row, bank, model.chat.eos_ids, readers=second)
            while not prefill.finished:
                prefill.advance(512)
        assert prefill.cached > 0
        states.append([np.array(x, dtype=np.float64) for x in prefill.rows().state.arrays()])
    for ours, theirs in zip(*states, strict=True):
        assert np.abs(ours - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("where", [0, 2, 3])
@pytest.mark.parametrize("who", ["first", "second", "both"])
def test_what_either_reader_raises_is_raised_and_the_next_block_is_read(
    spec: SpecModel, readers: Readers, monkeypatch: pytest.MonkeyPatch, who: str, where: int
) -> None:
    through = SpecModel.through

    def failing(self: SpecModel, place: int, x: mx.array, state: Any) -> mx.array:
        second = threading.current_thread().name == SECOND
        if place == where and who in ("both", "second" if second else "first"):
            raise Boom
        return through(self, place, x, state)

    with monkeypatch.context() as patch:
        patch.setattr(SpecModel, "through", failing)
        with pytest.raises(Boom):
            after(spec, [draw(300)], readers)
    assert_same(after(spec, [draw(300)], readers), after(spec, [draw(300)], None))


def test_a_second_reader_that_nobody_closed_ends_with_its_owner(spec: SpecModel) -> None:
    before = seconds()
    forgotten = Readers(spec)
    after(spec, [draw(SHORTEST)], forgotten)
    assert len(seconds() - before) == 1
    del forgotten
    assert seconds() <= before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("engines") / "model", make("qwen3_5", max_position_embeddings=4096))


def test_two_engines_that_read_at_once_say_what_each_says_alone(folder: Path) -> None:
    requests = [
        Request(tuple(draw(1500, seed)), Sampling(temperature=0.8), max_tokens=12, seed=seed, ignore_eos=True)
        for seed in range(2)
    ]
    alone = [DirectEngine(EngineConfig(str(folder), cache_bytes=0)).run([each])[0].ids for each in requests]
    engines = [ThreadEngine(EngineConfig(str(folder), cache_bytes=0)) for _ in requests]
    for engine in engines:
        engine.wait_ready()
    ended: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue() for _ in requests]
    for engine, request, events in zip(engines, requests, ended, strict=True):
        engine.submit(request, events.put)
    assert [answer(events).ids for events in ended] == alone
    assert all(engine.close() for engine in engines)


def answer(events: "queue.SimpleQueue[Event]") -> Completion:
    collected = Answer()
    while (completion := collected.add(events.get(timeout=60))) is None:
        pass
    return completion


def test_a_cancelled_prompt_stops_behind_its_chunk_and_a_closed_engine_leaves_no_thread(folder: Path) -> None:
    before, engine = seconds(), ThreadEngine(EngineConfig(str(folder), cache_bytes=0))
    engine.wait_ready()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(tuple(draw(4000)), GREEDY, max_tokens=4, id="long")
    told: list[Event] = []

    def take(event: Event) -> None:
        if isinstance(event, PrefillEvent):
            engine.cancel("long")
        events.put(event)

    engine.submit(request, take)
    while not told or not isinstance(told[-1], FinishEvent):
        told.append(events.get(timeout=60))
    assert told[-1].reason == "cancelled"
    read_on = [event.done for event in told if isinstance(event, PrefillEvent)]
    assert len(read_on) <= 2
    assert read_on[-1] < 1500
    assert engine.close()
    assert seconds() <= before
