"""What is said never depends on how it was drafted: depth, batch, neighbours, arrival."""

import random
from dataclasses import replace

import pytest

from engine.collect import Completion
from engine.direct import DirectEngine
from engine.prompts import PROMPTS
from engine.request import MAX_DEPTH, Request, Sampling

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "plain": Sampling(temperature=1.0),
    "filtered": Sampling(temperature=0.7, top_k=20, top_p=0.9),
    "min_p": Sampling(temperature=1.3, min_p=0.05),
    "penalised": Sampling(
        temperature=0.9, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, logit_bias=((100, 3.0),)
    ),
}


def ask(engine: DirectEngine, prompt: str, sampling: Sampling, **changes: object) -> Request:
    ids = engine.loaded.chat.render([{"role": "user", "content": prompt}])
    return replace(Request(ids, sampling, max_tokens=32, seed=7), **changes)


def ids(answers: list[Completion]) -> list[tuple[int, ...]]:
    assert all(answer.error is None for answer in answers)
    return [answer.ids for answer in answers]


@pytest.mark.parametrize(
    "name",
    [name if name in ("greedy", "penalised") else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLINGS],
)
def test_seeded_text_is_the_same_at_every_depth(small: DirectEngine, name: str) -> None:
    request = ask(small, PROMPTS[1], SAMPLINGS[name], ignore_eos=True)
    plain = ids(small.run([replace(request, depth=0)]))
    for depth in (*range(1, MAX_DEPTH + 1), None):
        assert ids(small.run([replace(request, depth=depth)])) == plain


def test_rows_of_every_kind_in_one_batch_say_what_they_say_alone(small: DirectEngine) -> None:
    requests = [
        ask(small, PROMPTS[number % len(PROMPTS)], sampling, depth=number % 5, accept_rule=rule, seed=number)
        for number, sampling in enumerate(SAMPLINGS.values())
        for rule in ("coupled", "rejection")
    ]
    together = ids(small.run([replace(request, id=f"b{n}") for n, request in enumerate(requests)]))
    alone = [ids(small.run([request]))[0] for request in requests]
    # a rejection row draws by what it drafted, so it says the same only where it drafts the same: its own depth
    assert together == alone


def test_texts_survive_any_order_of_arrival_and_leaving(small: DirectEngine) -> None:
    shuffled = random.Random(5)
    requests = [
        ask(small, shuffled.choice(PROMPTS), sampling, max_tokens=shuffled.randint(1, 40), seed=seed)
        for seed, sampling in enumerate(list(SAMPLINGS.values()) * 4)
    ]
    alone = {request.seed: ids(small.run([request]))[0] for request in requests}
    shuffled.shuffle(requests)
    together = small.run([replace(request, id=f"s{request.seed}") for request in requests])
    assert {r.seed: a.ids for r, a in zip(requests, together, strict=True)} == alone


@pytest.mark.parametrize("depth", range(MAX_DEPTH + 1))
def test_budget_is_kept_and_usage_counts_what_was_delivered(small: DirectEngine, depth: int) -> None:
    for budget in range(1, depth + 3):
        (answer,) = small.run([ask(small, PROMPTS[1], SAMPLINGS["greedy"], depth=depth, max_tokens=budget)])
        usage = answer.usage
        assert len(answer.ids) == usage.completion_tokens == budget
        assert answer.finish_reason == "length"
        assert usage.accepted_prediction_tokens <= usage.completion_tokens
        assert usage.reasoning_tokens <= usage.completion_tokens


def test_stop_and_budget_inside_one_accepted_block(direct: DirectEngine) -> None:
    whole = direct.run([ask(direct, PROMPTS[0], SAMPLINGS["greedy"], depth=0, max_tokens=48)])[0]
    stop = "digit by"
    assert stop in whole.reasoning
    for depth in range(MAX_DEPTH + 1):
        for budget in (20, 48):
            request = ask(direct, PROMPTS[0], SAMPLINGS["greedy"], depth=depth, stop=(stop,), max_tokens=budget)
            (answer,) = direct.run([request])
            assert answer.reasoning == whole.reasoning[: whole.reasoning.index(stop)]
            assert answer.finish_reason == "stop"
            assert answer.text == ""


def test_logprobs_are_the_models_own_at_any_depth(direct: DirectEngine) -> None:
    plain, drafted = (
        direct.run([ask(direct, PROMPTS[0], SAMPLINGS["filtered"], depth=depth, logprobs=3)])[0] for depth in (0, 4)
    )
    assert plain.ids == drafted.ids
    assert [t.id for t in drafted.logprobs] == list(drafted.ids)
    for a, b in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
        assert [token for token, _, _ in a.top] == [token for token, _, _ in b.top]
        assert a.top[0][2] >= a.logprob - 1e-6


def test_a_row_without_logprobs_gets_none_beside_one_with(direct: DirectEngine) -> None:
    with_them = ask(direct, PROMPTS[0], SAMPLINGS["greedy"], logprobs=0)
    without = ask(direct, PROMPTS[1], SAMPLINGS["greedy"])
    answers = direct.run([with_them, replace(without, id="w")])
    assert len(answers[0].logprobs) == len(answers[0].ids)
    assert answers[0].logprobs[0].top == ()
    assert answers[1].logprobs == ()


def test_bias_forces_and_forbids(direct: DirectEngine) -> None:
    (free,) = direct.run([ask(direct, PROMPTS[0], SAMPLINGS["greedy"], depth=3)])
    forbidden = free.ids[5]
    sampling = Sampling(temperature=0.0, logit_bias=((forbidden, -100.0),))
    (without,) = direct.run([ask(direct, PROMPTS[0], sampling, depth=3)])
    assert forbidden not in without.ids
    forced = Sampling(temperature=0.0, logit_bias=((forbidden, 100.0),))
    (only,) = direct.run([ask(direct, PROMPTS[0], forced, depth=3, max_tokens=9)])
    assert set(only.ids) == {forbidden}


def test_ignore_eos_goes_on_to_the_budget(direct: DirectEngine) -> None:
    (answer,) = direct.run([ask(direct, PROMPTS[0], SAMPLINGS["greedy"], ignore_eos=True, max_tokens=150)])
    assert (answer.finish_reason, len(answer.ids)) == ("length", 150)


def test_the_context_ends_an_answer(small: DirectEngine) -> None:
    context = small.loaded.info.context
    prompt = tuple([50] * (context - 5))
    (answer,) = small.run([Request(prompt, SAMPLINGS["greedy"], ignore_eos=True, depth=4)])
    assert (answer.finish_reason, len(answer.ids)) == ("length", 5)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_prompts(small: DirectEngine, length: int) -> None:
    request = Request(tuple(range(60, 60 + length)), Sampling(temperature=1.0), max_tokens=12, seed=3)
    plain, drafted = (ids(small.run([replace(request, depth=depth)])) for depth in (0, 4))
    assert plain == drafted
    assert len(plain[0]) > 0


def test_prompts_longer_than_a_prefill_chunk_say_the_same_in_one_chunk_or_many(direct: DirectEngine) -> None:
    text = "The fox saw a river and a bench. " * 60
    request = ask(direct, text + PROMPTS[0], SAMPLINGS["greedy"], depth=3)
    assert len(request.prompt) > 512
    alone = ids(direct.run([request]))[0]
    # beside a running row the prompt is read in smaller chunks
    beside = direct.run([ask(direct, PROMPTS[1], SAMPLINGS["greedy"], id="first"), replace(request, id="second")])
    assert beside[1].ids == alone
