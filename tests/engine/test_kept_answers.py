"""What a model has said is not read again when its conversation goes on, and the state kept of it is the right one."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import mlx.core as mx
import pytest
import tiny_models

from engine.caches.recurrent import RecurrentCache
from engine.config import EngineConfig, Mode
from engine.device import is_cuda
from engine.direct import DirectEngine
from engine.prefill import Prefill
from engine.request import Request, Sampling
from engine.row import Row
from engine.selftest.states import difference

GREEDY = Sampling(temperature=0.0)
SEEDED = Sampling(temperature=0.8, top_k=20)
QUESTIONS = ("What is 47 + 85?", "Sort these numbers: 42, 7, 19, 3.", "Tell me about a fox.", "Count from 3 to 9.")
NUMBERS = count()
CLOSE = 2e-2 if is_cuda() else 1e-4  # CUDA multiplies in TF32, and the demo model is half-precision there


@pytest.fixture(scope="module")
def warm() -> DirectEngine:
    return DirectEngine(EngineConfig(cache_bytes=1 << 30))


@pytest.fixture(scope="module")
def cold() -> DirectEngine:
    return DirectEngine(EngineConfig(cache_bytes=0))


def question(engine: DirectEngine, text: str) -> tuple[int, ...]:
    return engine.loaded.chat.render([{"role": "user", "content": f"{text} (Asked as number {next(NUMBERS)}.)"}])


def read(engine: DirectEngine, prompt: Sequence[int], warm: bool) -> Prefill:
    row = Row(Request(tuple(prompt), GREEDY), 0, "mtp", engine.loaded.chat, 2048, lambda event: None)
    prefill = Prefill(engine.loaded.spec, row, engine._runner._bank if warm else None)
    while not prefill.finished:
        prefill.advance(97)
    return prefill


def assert_kept(engine: DirectEngine, said: Sequence[int]) -> None:
    """A prompt that goes on behind `said` finds all of it, in caches that are those of a cold read."""
    further = [*said, *range(200, 220)]  # in every vocabulary here
    ours, theirs = read(engine, further, True), read(engine, further, False)
    assert ours.cached >= len(said) - 1
    one, other = ours.rows(), theirs.rows()
    assert max(difference(one.state, other.state)) < CLOSE
    rows = len(further) - 2
    for mine, cold in zip(one.state.head, other.state.head, strict=True):
        for a, b in zip(mine.arrays(), cold.arrays(), strict=True):
            assert float(mx.abs(a[:, :, :rows] - b[:, :, :rows]).max()) < 10 * CLOSE


def test_an_answer_is_kept_wherever_in_its_last_block_it_ends(warm: DirectEngine) -> None:
    for depth, most in ((0, 5), (1, 6), (3, 5), (3, 6), (3, 7), (3, 200), (8, 7)):
        request = Request(question(warm, QUESTIONS[0]), GREEDY, max_tokens=most, depth=depth)
        (answer,) = warm.run([request])
        assert len(answer.ids) == most or answer.finish_reason == "stop"
        assert_kept(warm, [*request.prompt, *answer.ids])


def test_answers_of_a_batch_are_kept_each_with_its_own_state(warm: DirectEngine) -> None:
    requests = [
        Request(question(warm, text), SEEDED, max_tokens=20 + 9 * place, seed=place, depth=place)
        for place, text in enumerate(QUESTIONS)
    ]
    for request, answer in zip(requests, warm.run(requests), strict=True):
        assert_kept(warm, [*request.prompt, *answer.ids])


def test_a_conversation_says_the_same_warm_and_cold_and_reuses_all_that_it_said(
    warm: DirectEngine, cold: DirectEngine
) -> None:
    (eos,) = warm.loaded.chat.encode("<|im_end|>")
    prompt = question(warm, QUESTIONS[0])
    said = 0
    for turn in range(4):
        request = Request(prompt, SEEDED, max_tokens=60, seed=turn, depth=3)
        (again,), (anew,) = warm.run([request]), cold.run([request])
        assert again.ids == anew.ids
        assert again.stats.accepted_by_depth == anew.stats.accepted_by_depth, "the head's cache is the right one"
        assert again.usage.cached_tokens >= said - 1
        said = len(prompt) + len(again.ids)
        prompt = (*prompt, *again.ids, eos, *warm.loaded.chat.encode("\n<|im_start|>user\nAnd then?<|im_end|>\n"))
        prompt = (*prompt, *warm.loaded.chat.encode("<|im_start|>assistant\n<think>\n"))


def test_a_next_turn_without_the_thinking_resumes_where_the_answer_was_opened(warm: DirectEngine) -> None:
    chat = warm.loaded.chat
    turns = [{"role": "user", "content": "Which of these is the largest: 12, 90, 31? Say it in one short sentence."}]
    first = chat.render(turns)
    warm.run([Request(first, GREEDY, max_tokens=40)])
    turns += [{"role": "assistant", "content": "90 is."}, {"role": "user", "content": "And the smallest?"}]
    second = chat.render(turns)
    shared = next(place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    (answer,) = warm.run([Request(second, GREEDY, max_tokens=4)])
    assert answer.usage.cached_tokens > 0.95 * shared


@pytest.mark.parametrize(
    ("family", "mode"), [("qwen3_5", "mtp"), ("qwen3_next", "ar"), ("llama", "mtp"), ("llama", "ar")]
)
def test_every_kind_of_model_keeps_its_answers(family: str, mode: Mode, tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.make(family))
    engine = DirectEngine(EngineConfig(model=str(folder), mode=mode))
    recurrent = any(isinstance(cache, RecurrentCache) for cache in engine.loaded.spec.new_state().trunk)
    assert recurrent == (family != "llama")
    for most in (40, 43):
        prompt = tuple((7 * place + most) % 250 for place in range(50))
        (answer,) = engine.run([Request(prompt, GREEDY, max_tokens=most, ignore_eos=True)])
        assert_kept(engine, [*prompt, *answer.ids])
