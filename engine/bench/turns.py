"""The second turn of a long conversation: how soon it starts with the first one cached, in memory or on disk."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bench.runs import answered, rendered
from engine.bench.stats import Spread
from engine.collect import Completion
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.prompts import KINDS
from engine.request import Request, Sampling

if TYPE_CHECKING:
    from engine.chat import ChatFormat
    from engine.models.load import LoadedModel

SAMPLED = Sampling(temperature=1.0)
SEED = 7


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """A seeded second turn, with nothing cached, with the first turn in memory, and with it on disk after a restart.

    Attributes:
        first: tokens of the first turn's prompt. prompt: of the second turn's, the first one's answer included.
        cached_memory, cached_disk: how many of those were not read again.
        cold_s, memory_s, disk_s: seconds from the request to the first output. Loading the weights is in none of them.
        memory_vs_cold, disk_vs_cold: the same as ratios within repeats.
        same_text: whether all three gave one text in every repeat.
    """

    first: int
    prompt: int
    cached_memory: int
    cached_disk: int
    cold_s: Spread
    memory_s: Spread
    disk_s: Spread
    memory_vs_cold: Spread
    disk_vs_cold: Spread
    same_text: bool


def second_turn(
    loaded: "LoadedModel", config: EngineConfig, first: tuple[int, ...], most: int, repeats: int
) -> SecondTurn:
    """Measure it behind a first turn's prompt and an answer of `most` tokens, drafts judged as ever.

    What is restored after a restart lies in the file system's cache as a rule, since it was just written.

    Args:
        config: what the weights were loaded with.
    Raises EngineError where a request fails.
    """
    kept = replace(config, cache_bytes=EngineConfig().cache_bytes, cache_folder=None, acceptance=None)
    found: list[list[tuple[Completion, float]]] = []  # cold, warm and restarted, with seconds to the first output
    prompt: tuple[int, ...] = ()
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            on_disk = replace(kept, cache_folder=Path(folder))
            with _started(loaded, on_disk) as engine:
                prompt = _continued(loaded.chat, first, _answer(engine, first, most)[0])
            with _started(loaded, on_disk) as engine:
                restarted = _answer(engine, prompt, most)
        with _started(loaded, kept) as engine:
            _answer(engine, first, most)
            warm = _answer(engine, prompt, most)
        with _started(loaded, replace(kept, cache_bytes=0)) as engine:
            found.append([_answer(engine, prompt, most), warm, restarted])
    cold_s, memory_s, disk_s = ([answers[place][1] for answers in found] for place in range(3))
    return SecondTurn(
        first=len(first),
        prompt=len(prompt),
        cached_memory=warm[0].usage.cached_tokens,
        cached_disk=restarted[0].usage.cached_tokens,
        cold_s=Spread.of(cold_s),
        memory_s=Spread.of(memory_s),
        disk_s=Spread.of(disk_s),
        memory_vs_cold=Spread.of_ratios(memory_s, cold_s),
        disk_vs_cold=Spread.of_ratios(disk_s, cold_s),
        same_text=len({answer.ids for answers in found for answer, _ in answers}) == 1,
    )


def room(loaded: "LoadedModel", most: int) -> int:
    """Tokens of the longest first prompt that leaves room for two answers of `most` tokens and the second question."""
    return loaded.info.context - 2 * most - len(_question(loaded.chat)) - 1


@contextmanager
def _started(loaded: "LoadedModel", config: EngineConfig) -> Iterator[DirectEngine]:
    """An engine with caches of its own; closing it writes what its folder does not have yet."""
    engine = DirectEngine(config, loaded=loaded)
    try:
        yield engine
    finally:
        engine.close()


def _question(chat: "ChatFormat") -> Sequence[int]:
    return rendered(chat, KINDS["prose"][0])


def _continued(chat: "ChatFormat", first: tuple[int, ...], answer: Completion) -> tuple[int, ...]:
    """The conversation with the answer, its end, and the next question."""
    return (*first, *answer.ids, min(chat.eos_ids), *_question(chat))


def _answer(engine: DirectEngine, prompt: tuple[int, ...], most: int) -> tuple[Completion, float]:
    return answered(engine, Request(prompt, SAMPLED, max_tokens=most, seed=SEED, source="bench", ignore_eos=True))
