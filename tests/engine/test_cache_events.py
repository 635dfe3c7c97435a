"""What the engine tells of the prefixes that it keeps, and forgetting them while it runs."""

import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.caches.blobs import Blobs
from engine.collect import complete
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.events import CacheEvent, Event
from engine.handle import EngineHandle
from engine.process import ProcessEngine
from engine.request import Request, Sampling
from engine.row import Row
from engine.runner import Runner

GREEDY = Sampling(temperature=0.0)
LONG = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 8
WAIT = 60.0


def prompt(engine: EngineHandle, text: str) -> tuple[int, ...]:
    return engine.chat.render([{"role": "user", "content": text}])


@pytest.mark.parametrize("kind", [ThreadEngine, ProcessEngine])
def test_what_is_kept_is_told_and_can_be_forgotten(kind: Callable[..., EngineHandle], tmp_path: Path) -> None:
    told: queue.SimpleQueue[CacheEvent] = queue.SimpleQueue()

    def hear(event: Event) -> None:
        if isinstance(event, CacheEvent):
            told.put(event)

    engine = kind(EngineConfig(cache_folder=tmp_path, cache_bytes=1 << 28), hear)
    try:
        engine.wait_ready(WAIT)
        first = told.get(timeout=WAIT)
        assert (first.stretches, first.tokens, first.nbytes, first.evicted) == (0, 0, 0, 0)
        assert (first.limit, first.folder) == (1 << 28, str(tmp_path))
        assert complete(engine, Request(prompt(engine, LONG), GREEDY, max_tokens=2)).usage.cached_tokens == 0
        held = told.get(timeout=WAIT)
        while held.tokens <= len(prompt(engine, LONG)):  # one for each checkpoint of the prompt, then the answer's
            held = told.get(timeout=WAIT)
        assert held == engine.cache
        assert held.stretches > 1
        assert held.nbytes > 0
        again = complete(engine, Request(prompt(engine, LONG), GREEDY, max_tokens=2))
        assert 32 < again.usage.cached_tokens < held.tokens
        engine.clear_cache()
        while held.stretches:
            held = told.get(timeout=WAIT)
        assert (held.tokens, held.nbytes) == (0, 0)
        assert complete(engine, Request(prompt(engine, LONG), GREEDY, max_tokens=2)).usage.cached_tokens == 0
        engine.clear_cache()
        while engine.cache is None or engine.cache.stretches:
            told.get(timeout=WAIT)
    finally:
        assert engine.close(30)
    blobs = Blobs(tmp_path)
    assert blobs.entries() == [], "it is gone from the disk as well"
    blobs.close()


def test_an_engine_without_a_cache_tells_of_none() -> None:
    heard: list[Event] = []
    engine = ThreadEngine(EngineConfig(cache_bytes=0), heard.append)
    engine.wait_ready(WAIT)
    engine.clear_cache()
    assert complete(engine, Request(prompt(engine, LONG), GREEDY, max_tokens=2)).error is None
    assert engine.cache is None
    assert engine.close(30)
    assert not any(isinstance(event, CacheEvent) for event in heard)


def test_forgetting_amid_a_prompt_changes_no_answer_and_keeps_nothing_of_before(small: DirectEngine) -> None:
    loaded, told = small.loaded, list[CacheEvent]()
    ids = loaded.chat.render([{"role": "user", "content": LONG * 3}])
    (expected,) = small.run([Request(ids, GREEDY, max_tokens=8)])
    runner = Runner(loaded, EngineConfig(), on_cache=told.append)

    def run(forget: bool) -> list[int]:
        row = Row(Request(ids, GREEDY, max_tokens=8), 0, "mtp", loaded.chat, loaded.info.context, lambda event: None)
        runner.add(row)
        while not runner.idle:
            runner.turn()
            if forget and not row.made:
                runner.clear_cache()
        return row.made

    assert run(forget=False)[: len(expected.ids)] == list(expected.ids)
    assert told[-1].stretches > 0
    assert run(forget=True)[: len(expected.ids)] == list(expected.ids)
    assert told[-1].stretches == 0, "what was read before it was forgotten is not kept either"


def test_what_leaves_memory_for_want_of_room_is_counted(small: DirectEngine) -> None:
    told: list[CacheEvent] = []
    loaded = small.loaded
    runner = Runner(loaded, EngineConfig(cache_bytes=300_000), on_cache=told.append)
    for number in range(6):
        ids = loaded.chat.render([{"role": "user", "content": f"{number} {LONG}"}])
        runner.add(Row(Request(ids, GREEDY, max_tokens=1), 0, "mtp", loaded.chat, 2048, lambda event: None))
        while not runner.idle:
            runner.turn()
    assert told[-1].evicted > 0
    assert [event.evicted for event in told] == sorted(event.evicted for event in told)
    assert told[-1].nbytes <= told[-1].limit
