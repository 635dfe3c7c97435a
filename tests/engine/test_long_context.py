"""Prompts of tens and hundreds of thousands of tokens: read in any chunks, in bounded memory."""

import random
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_models import BYTES, make, save

from engine.caches.capacity import DOUBLED, SMALLEST, capacity
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.events import Event, PrefillEvent
from engine.models.load import load
from engine.prefill import READ_AREA, Prefill
from engine.profiles import PROFILES, TURBO
from engine.request import Request, Sampling
from engine.row import Row

CONTEXT = 1 << 18
SEEDED = Sampling(temperature=0.8, top_k=50)
WORK = 24e6  # bytes of everything that does not grow with the prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, one of them with attention, and a head; one attention head each, so that reading takes seconds."""
    tiny = make("qwen3_5", hidden_size=64, num_attention_heads=1, max_position_embeddings=CONTEXT)
    return save(tmp_path_factory.mktemp("long") / "model", tiny)


def prompt(length: int) -> tuple[int, ...]:
    draw = random.Random(length)
    return tuple(draw.randrange(BYTES) for _ in range(length))


@pytest.mark.slow
def test_a_prompt_of_16k_says_the_same_by_any_chunks_drafts_and_caches(folder: Path) -> None:
    request = Request(prompt(1 << 14), SEEDED, max_tokens=24, seed=3, ignore_eos=True)
    texts = []
    for profile, cache_bytes, depth, times in ((TURBO, 0, 0, 1), (PROFILES["sustained"], 1 << 30, 3, 2)):
        engine = DirectEngine(EngineConfig(str(folder), profile=profile, cache_bytes=cache_bytes))
        for number in range(times):  # the second time from the bank
            texts += [engine.run([replace(request, depth=depth, id=f"{number}")])[0].ids]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 24


def grown(folder: Path, length: int, chunk: int) -> tuple[Prefill, float, float]:
    """A prompt that has been read; bytes of its caches, and the most that reading it took above what was there."""
    loaded = load(EngineConfig(str(folder)))
    row = Row(Request(prompt(length), SEEDED), 3, "mtp", loaded.chat, CONTEXT, lambda event: None)
    prefill = Prefill(loaded.spec, row)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    while not prefill.finished:
        prefill.advance(chunk)
    peak = mx.get_peak_memory() - before
    return prefill, float(sum(array.nbytes for array in prefill.rows().state.arrays())), float(peak)


def bound(kept: float, length: int, chunk: int) -> float:
    """Old caches beside new ones while they grow, and the scores of one attention head with their mask."""
    return 2 * kept + (4 + 1) * min(READ_AREA, chunk * length) + WORK


def test_reading_16k_takes_bounded_memory(folder: Path) -> None:
    length, chunk = 1 << 14, 1024
    _, kept, peak = grown(folder, length, chunk)
    assert peak <= bound(kept, length, chunk)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reading_200k_takes_bounded_memory(folder: Path) -> None:
    length, chunk = 200_000, PROFILES["sustained"].chunk
    prefill, kept, peak = grown(folder, length, chunk)
    assert prefill.done == length - 1
    assert peak <= bound(kept, length, chunk)


def test_deep_chunks_shrink_and_the_prompt_is_still_read_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.prefill.READ_AREA", 1 << 18)
    engine = DirectEngine(EngineConfig(str(folder), cache_bytes=0))
    reading: list[PrefillEvent] = []

    def take(event: Event) -> None:
        if isinstance(event, PrefillEvent):
            reading.append(event)

    request = Request(prompt(3000), SEEDED, max_tokens=16, seed=1, ignore_eos=True)
    (shrunk,) = engine.run([request], take)
    ends = [event.done for event in reading]
    chunks = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert chunks[0] > 400
    assert max(chunks[-3:]) < 110
    assert ends[-1] == 2999
    monkeypatch.undo()
    assert engine.run([replace(request, id="whole")])[0].ids == shrunk.ids


def test_capacities_double_and_then_grow_by_quarters() -> None:
    slots = SMALLEST
    while slots < 1 << 20:
        assert capacity(slots) == slots
        after = capacity(slots + 1)
        assert after == 2 * slots if slots < DOUBLED else after <= 1.25 * slots
        slots = after
    assert capacity(200_000) < 230_000
