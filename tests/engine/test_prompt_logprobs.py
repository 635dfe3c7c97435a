"""The numbers of a prompt are those of a plain forward pass, in whatever pieces and company it is read."""

import queue
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from by_hand import ByHand
from tiny_models import CONFIGS, VOCAB, make, opened, save

from engine.collect import Completion, complete, complete_all
from engine.config import EngineConfig, Mode
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.errors import BadRequestError
from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent, StepEvent, TokenEvent, TokenLogprob
from engine.logprobs import PIECE
from engine.memory import WORK
from engine.models.load import LoadedModel
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.process import ProcessEngine
from engine.profiles import PROFILES, Profile
from engine.request import Request, Sampling
from engine.row import Row

GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.5)
SMALL_CHUNKS = Profile("test", chunk=64)
LENGTHS = (2, PIECE + 1, PIECE + 2, 65, 66, 150)


def prompt(tokens: int, start: int = 0) -> tuple[int, ...]:
    """Ids that hold no special token, other ones for another start."""
    return tuple((start * 97 + 31 * place) % 250 for place in range(tokens))


def scoring(ids: Sequence[int], name: str = "scored", **fields: Any) -> Request:
    return Request(tuple(ids), id=name, **({"prompt_logprobs": 2, "max_tokens": 0, "sampling": SAMPLED} | fields))


def plain(logits: mx.array) -> np.ndarray:
    """The log-softmax of [1, T, V] logits, in double precision."""
    wide = np.array(logits[0].astype(mx.float32), dtype=np.float64)
    return wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)


def forward(loaded: LoadedModel, ids: Sequence[int]) -> np.ndarray:
    """Of a prompt read at once."""
    state = loaded.spec.new_state()
    state.read(True)
    return plain(loaded.spec.logits(loaded.spec.hidden(mx.array([list(ids)]), state)))


def assert_exact(told: Sequence[TokenLogprob], ids: Sequence[int], expected: np.ndarray, top: int) -> None:
    """Each token after the first has its own number and its likeliest alternatives, those of `expected` [T, V]."""
    assert [token.id for token in told] == list(ids[1:])
    for place, token in enumerate(told):
        row = expected[place]
        assert token.logprob == pytest.approx(row[token.id], abs=2e-4)
        assert len({id for id, _, _ in token.top}) == top
        values = [value for _, _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(np.sort(row)[::-1][:top], abs=2e-4)
        assert values == pytest.approx([row[id] for id, _, _ in token.top], abs=2e-4)
        assert all(value == token.logprob for id, _, value in token.top if id == token.id), "the same to the last bit"


@pytest.mark.parametrize(("family", "mode"), [*((family, "mtp") for family in CONFIGS), ("qwen3_5", "ar")])
def test_numbers_are_those_of_mlx_lms_own_model_across_chunks(tmp_path: Path, family: str, mode: Mode) -> None:
    tiny = make(family)
    loaded = opened(save(tmp_path / "model", tiny), mode)
    model = tiny.empty()
    model.load_weights(list(tiny.trunk.items()))
    draw = np.random.default_rng(1)
    hand = ByHand(loaded, mode=mode, profile=SMALL_CHUNKS)
    for length in LENGTHS:
        ids = draw.integers(0, VOCAB, length).tolist()
        hand.add(scoring(ids, str(length), prompt_logprobs=5))
        hand.turn_until()
        assert_exact(hand.done[str(length)].prompt_logprobs, ids, plain(model(mx.array([ids]))), 5)


@pytest.mark.parametrize("top", [0, 1, 20])
def test_any_number_of_alternatives_over_checkpoints_and_chunks(small: DirectEngine, top: int) -> None:
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    turn = small.loaded.chat.render([{"role": "user", "content": "What is 47 + 85? " * 8}])
    ids = (*turn, *prompt(40), *turn)
    hand.add(scoring(ids, prompt_logprobs=top))
    hand.turn_until()
    assert_exact(hand.done["scored"].prompt_logprobs, ids, forward(small.loaded, ids), top)


def test_scoring_makes_nothing_and_says_so(small: DirectEngine) -> None:
    told: list[Event] = []
    (answer,) = small.run([scoring(prompt(100))], told.append)
    assert (answer.finish_reason, answer.ids, answer.text, answer.error) == ("length", (), "", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, 0)
    assert (answer.stats.steps, answer.stats.ttft_s) == (0, None)
    assert {type(event) for event in told} == {PrefillEvent, FinishEvent}
    assert len(answer.prompt_logprobs) == 99


def test_a_prompt_of_one_token_has_nothing_to_score(small: DirectEngine) -> None:
    (answer,) = small.run([scoring((5,))])
    assert (answer.finish_reason, answer.prompt_logprobs) == ("length", ())


@pytest.mark.parametrize("depth", [0, 3])
def test_what_was_made_scores_as_it_did_when_it_was_made(small: DirectEngine, depth: int) -> None:
    ids = small.loaded.chat.render([{"role": "user", "content": "Tell me a short story about a fox."}])
    (made,) = small.run([Request(ids, SAMPLED, max_tokens=40, seed=4, depth=depth, logprobs=3)])
    whole = (*ids, *made.ids)
    (scored,) = small.run([scoring(whole, prompt_logprobs=3)])
    again = scored.prompt_logprobs[len(ids) - 1 :]
    assert [token.id for token in again] == [token.id for token in made.logprobs]
    for one, other in zip(again, made.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [value for _, _, value in one.top] == pytest.approx([value for _, _, value in other.top], abs=1e-3)


def test_an_answer_is_the_same_with_its_prompt_scored(small: DirectEngine) -> None:
    request = Request(prompt(90), SAMPLED, max_tokens=20, seed=8, ignore_eos=True)
    (alone,) = small.run([request])
    (scored,) = small.run([replace(request, prompt_logprobs=1, id="scored")])
    assert scored.ids == alone.ids
    assert len(scored.prompt_logprobs) == 89


def test_neighbours_say_what_they_say_alone_and_so_do_the_numbers(small: DirectEngine) -> None:
    requests = [
        Request(prompt(20 + 50 * seed, seed), SAMPLED, max_tokens=16, seed=seed, ignore_eos=True, id=f"n{seed}")
        for seed in range(3)
    ]
    alone = {request.id: small.run([request])[0].ids for request in requests}
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS, max_rows=8)
    for seed, request in enumerate(requests):
        hand.add(request)
        hand.add(scoring(prompt(70 + seed, 50 + seed), f"s{seed}"))
        hand.add(replace(requests[0], id=f"both{seed}", prompt_logprobs=0))
        hand.runner.turn()
    hand.turn_until()
    assert {name: hand.done[name].ids for name in alone} == alone
    assert {hand.done[f"both{seed}"].ids for seed in range(3)} == {alone["n0"]}
    for seed in range(3):
        ids = prompt(70 + seed, 50 + seed)
        assert_exact(hand.done[f"s{seed}"].prompt_logprobs, ids, forward(small.loaded, ids), 2)


def test_a_cancel_between_chunks_ends_it_with_what_was_told(small: DirectEngine) -> None:
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    row = hand.add(scoring(prompt(600)))
    for _ in range(3):
        hand.runner.turn()
    read = hand.of(PrefillEvent, "scored")[-1].done
    assert 0 < read < 599
    hand.runner.cancel("scored")
    assert hand.done["scored"].finish_reason == "cancelled"
    assert len(hand.done["scored"].prompt_logprobs) == read
    hand.add(scoring(prompt(600), "after"))
    hand.turn_until()
    assert row.finished == "cancelled"
    assert_exact(hand.done["after"].prompt_logprobs, prompt(600), forward(small.loaded, prompt(600)), 2)


# --- the cache


def conversation(loaded: LoadedModel, turns: int = 4) -> tuple[int, ...]:
    long = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 4
    texts = [("system", long), ("user", long), ("assistant", "Yes."), ("user", long + "And?")]
    return loaded.chat.render([{"role": role, "content": text} for role, text in texts[:turns]])


def test_a_cached_prompt_is_read_whole_and_the_miss_says_why(small: DirectEngine) -> None:
    hand = ByHand(small.loaded)
    ids = conversation(small.loaded)
    for name, fields in (("first", {"prompt_logprobs": None, "max_tokens": 1}), ("scored", {}), ("again", {})):
        hand.add(scoring(ids, name, **fields))
        hand.turn_until()
    for name in ("scored", "again"):
        assert hand.done[name].usage.cached_tokens == 0
        assert "log-probabilities were asked for" in hand.of(PrefillEvent, name)[-1].miss
        assert_exact(hand.done[name].prompt_logprobs, ids, forward(small.loaded, ids), 2)
    hand.add(scoring(ids, "last", prompt_logprobs=None, max_tokens=1))
    hand.turn_until()
    assert hand.done["last"].usage.cached_tokens > 0.8 * len(ids)


def test_a_scored_prompt_leaves_its_prefix_where_others_leave_theirs(small: DirectEngine) -> None:
    turns = [conversation(small.loaded, 2), conversation(small.loaded)]
    kept, cached = set(), set()
    for scored in ((), (0,), (1,), (0, 1)):
        hand = ByHand(small.loaded)
        for number, ids in enumerate((*turns, turns[1])):
            fields = {} if number in scored else {"prompt_logprobs": None, "max_tokens": 1}
            hand.add(scoring(ids, f"{number}", **fields))
            hand.turn_until()
        cached.add(hand.done["2"].usage.cached_tokens)
        bank = hand.runner._bank
        assert bank is not None
        kept.add(bank.nbytes)
    assert len(cached) == len(kept) == 1, "no stretch is kept twice"
    assert cached.pop() > 0.9 * len(turns[1])


# --- refused, failed, bounded


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -1, "prompt_logprobs": 0}),
        ("prompt_logprobs", {"prompt_logprobs": -1}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
    ],
)
def test_what_makes_no_sense_is_refused(engine: ThreadEngine, param: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refused:
        engine.submit(replace(Request((1, 2, 3), GREEDY), **changes), lambda event: None)
    assert refused.value.param == param


@pytest.mark.parametrize("bad", [mx.nan, mx.inf])
def test_a_logit_of_the_prompt_that_is_not_finite_ends_the_request_alone(
    small: DirectEngine, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    beside = Request(prompt(40, 3), SAMPLED, max_tokens=24, seed=3, ignore_eos=True, id="beside")
    alone = small.run([beside])[0].ids
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS, depth=0)
    hand.add(beside)
    for _ in range(4):
        hand.runner.turn()
    logits = SpecModel.logits

    def broken(spec: SpecModel, hidden: mx.array) -> mx.array:
        # a step has one column here, a piece of a prompt has more
        return logits(spec, hidden) if hidden.shape[1] == 1 else mx.full((1, hidden.shape[1], spec.vocab_size), bad)

    with monkeypatch.context() as patch:
        patch.setattr(SpecModel, "logits", broken)
        hand.add(scoring(prompt(200)))
        hand.turn_until("scored")
    assert hand.done["scored"].finish_reason == "error"
    assert "finite" in (hand.done["scored"].error or "")
    hand.turn_until()
    assert hand.done["beside"].ids == alone


def test_scoring_takes_no_more_memory_than_was_set_aside(tmp_path: Path) -> None:
    # A vocabulary against which all else is small: the logits of a whole chunk would be 157 MB, and the plan has 14.
    loaded = opened(save(tmp_path / "model", make("llama", vocab_size=1 << 16)))
    ids = [place % 250 for place in range(600)]
    hand = ByHand(loaded, cache_bytes=0)
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    hand.add(scoring(ids, prompt_logprobs=20))
    hand.turn_until()
    plan = hand.runner.plan
    taken = mx.get_peak_memory() - before
    assert hand.done["scored"].error is None
    assert plan.weights + taken <= (plan.weights + plan.batch_bytes(1, plan.slots(600, 0))) / (1 - WORK)


# --- on a thread, and from another process


def test_two_texts_are_told_apart(engine: ThreadEngine) -> None:
    question = [{"role": "user", "content": "What is 47 + 85?"}]
    asked = engine.chat.render(question, thinking=False)
    answers = [engine.chat.encode(f"47 + 85 is {number}.") for number in (132, 717)]
    right, wrong = complete_all(engine, [scoring((*asked, *ids), f"{n}") for n, ids in enumerate(answers)])

    def likelihood(answer: Completion) -> float:
        return sum(token.logprob for token in answer.prompt_logprobs[len(asked) - 1 :])

    assert likelihood(right) > likelihood(wrong) + 5


def test_events_keep_their_order(engine: ThreadEngine) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(scoring(prompt(1200), max_tokens=3, ignore_eos=True), events.put)
    seen: list[Event] = []
    while not (seen and isinstance(seen[-1], FinishEvent)):
        seen.append(events.get(timeout=60))
    kinds = [type(event) for event in seen]
    reading = kinds.count(PrefillEvent)
    assert reading > 1
    assert kinds[: 1 + reading] == [QueuedEvent] + [PrefillEvent] * reading
    assert set(kinds[1 + reading :]) == {StepEvent, TokenEvent, FinishEvent}
    done = 0
    for event in seen:
        if isinstance(event, PrefillEvent):
            done += len(event.logprobs)
            assert done == event.done
    assert done == 1199


def test_numbers_come_out_of_another_process_as_they_went_in() -> None:
    same_products = EngineConfig(profile=PROFILES["stock"])  # each process times which others are fastest
    request = scoring(prompt(70), prompt_logprobs=3)
    (here,) = DirectEngine(same_products).run([request])
    child = ProcessEngine(same_products)
    try:
        child.wait_ready(120)
        there = complete(child, request)
    finally:
        assert child.close(30)
    assert there.finish_reason == "length"
    assert there.prompt_logprobs == here.prompt_logprobs


# --- raw text


def test_raw_text_is_all_that_the_model_wrote(direct: DirectEngine) -> None:
    loaded = direct.loaded
    ids = loaded.chat.render([{"role": "user", "content": "What is 47 + 85?"}])
    request = Request(ids, GREEDY, max_tokens=200, logprobs=0)
    (told,) = direct.run([request])
    (raw,) = direct.run([replace(request, raw=True, id="raw")])
    assert told.reasoning, "the model thinks here, so there is a tag to be told apart"
    assert raw.ids == told.ids
    assert (raw.reasoning, raw.tool, raw.usage.reasoning_tokens) == ("", "", 0)
    assert raw.text == loaded.chat.decode(raw.ids) == b"".join(token.raw for token in raw.logprobs).decode()
    assert "</think>" in raw.text
    assert told.text in raw.text


def test_a_stop_string_may_be_a_tag_in_raw_text(direct: DirectEngine) -> None:
    ids = direct.loaded.chat.render([{"role": "user", "content": "What is 47 + 85?"}])
    (answer,) = direct.run([Request(ids, GREEDY, max_tokens=200, stop=("</think>",), raw=True)])
    assert answer.finish_reason == "stop"
    assert answer.text
    assert "<" not in answer.text


def test_prefill_gives_no_numbers_that_nobody_asked_for(direct: DirectEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("logits of a prompt were computed")

    row = Row(Request(prompt(50), GREEDY), 0, "mtp", direct.loaded.chat, 2048, lambda event: None)
    prefill = Prefill(direct.loaded.spec, row)
    with monkeypatch.context() as patch:
        patch.setattr(SpecModel, "logits", never)
        assert prefill.advance(100) is None
    assert prefill.finished
