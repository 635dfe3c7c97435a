"""Answers under a grammar: always in it, the same at any depth, and distributed as the model says.

The demo model was never taught JSON, so what it says is nonsense; that it fits is the grammar's doing.
"""

import json
import queue
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from scipy.special import chdtrc

from engine.collect import Completion, complete, complete_all
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.errors import BadRequestError
from engine.events import Event, FinishEvent, StepEvent, TokenEvent
from engine.grammar import GrammarCompiler
from engine.handle import EventSink
from engine.prefill import Prefill
from engine.process import ProcessEngine
from engine.prompts import PROMPTS
from engine.request import AcceptRule, Grammar, Request, Sampling
from engine.row import Row, RowStep
from engine.rows import Backlog, Rows
from engine.step import StepPlan, speculate

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
        "colour": {"enum": ["red", "green", "blue"]},
        "pets": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "age", "colour", "pets"],
    "additionalProperties": False,
}
LARK = 'start: line+\nline: WORD " = " NUMBER ";\\n"\nWORD: /[a-z]{1,8}/\nNUMBER: /[0-9]{1,3}/'
GRAMMARS = {
    "json_schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "json": Grammar("json"),
    "regex": Grammar("regex", r"(The|A) [a-z]{2,8} (is|was) [0-9]{2}(\.|!|\?)"),
    "lark": Grammar("lark", LARK),
}


def fits(name: str, text: str) -> bool:
    """Whether a text is in the language, checked without the library that keeps to it."""
    if name == "regex":
        return re.fullmatch(GRAMMARS["regex"].text, text) is not None
    if name == "lark":
        return re.fullmatch(r"([a-z]{1,8} = [0-9]{1,3};\n)+", text) is not None
    value = json.loads(text)
    if name == "json" or not isinstance(value, dict):
        return isinstance(value, dict)
    return (
        list(value) == ["name", "age", "colour", "pets"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and type(value["age"]) is int
        and 0 <= value["age"] <= 999
        and value["colour"] in ("red", "green", "blue")
        and len(value["pets"]) <= 2
        and all(isinstance(pet, str) and len(pet) <= 6 for pet in value["pets"])
    )


def ask(
    direct: DirectEngine, name: str, prompt: str = PROMPTS[1], thinking: bool = False, **changes: object
) -> Request:
    ids = direct.loaded.chat.render([{"role": "user", "content": prompt}], thinking=thinking)
    return replace(Request(ids, Sampling(), max_tokens=160, seed=7, grammar=GRAMMARS[name]), **changes)


def run(direct: DirectEngine, *requests: Request) -> list[Completion]:
    answers = direct.run([replace(request, id=f"g{n}") for n, request in enumerate(requests)])
    assert all(answer.error is None for answer in answers)
    return answers


def eager(direct: DirectEngine, name: str) -> Sampling:
    """The model's own distribution; where the language has no longest text, with a leaning towards its end."""
    chat = direct.loaded.chat
    ends = {"json": b'"}', "lark": b";"}.get(name, b"")
    leaning = [t for t in range(6135) if set(chat.token_bytes(t)) & set(ends)] + sorted(chat.eos_ids)
    return Sampling(logit_bias=tuple((t, 5.0) for t in leaning) if ends else ())


@pytest.mark.parametrize("count", [4, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GRAMMARS)
def test_every_answer_that_ends_is_in_its_grammar(direct: DirectEngine, name: str, count: int) -> None:
    rules: list[AcceptRule] = ["rejection", "block", "coupled"]
    sampling = eager(direct, name)
    ended = []
    for first in range(0, count, 8):
        asked = [
            ask(direct, name, PROMPTS[s % len(PROMPTS)], seed=s, sampling=sampling, accept_rule=rules[s % 3])
            for s in range(first, min(first + 8, count))
        ]
        ended += [answer for answer in run(direct, *asked) if answer.finish_reason == "stop"]
    assert ended, "the case judges nothing"
    for answer in ended:
        assert fits(name, answer.text), answer.text
        assert answer.reasoning == answer.tool == ""


FILTERED = Sampling(temperature=0.7, top_k=20, top_p=0.9)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("json_schema", Sampling()),
        ("regex", FILTERED),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("json_schema", FILTERED),
                ("regex", Sampling()),
                ("json_schema", Sampling(temperature=0.0)),
                ("regex", Sampling(temperature=0.0)),
            )
        ),
    ],
)
def test_seeded_text_is_the_same_at_every_depth(direct: DirectEngine, name: str, sampling: Sampling) -> None:
    (plain,) = run(direct, ask(direct, name, sampling=sampling, depth=0))
    assert fits(name, plain.text)
    for depth in (1, 2, 3, 4, None):
        (drafted,) = run(direct, ask(direct, name, sampling=sampling, depth=depth))
        assert (drafted.ids, drafted.text, drafted.finish_reason) == (plain.ids, plain.text, plain.finish_reason)
        assert drafted.stats.steps < plain.stats.steps


def test_a_batch_of_free_and_bound_rows_says_what_each_says_alone(direct: DirectEngine) -> None:
    kinds = [*GRAMMARS, None, None]
    asked = [
        replace(ask(direct, kind or "json", PROMPTS[n], seed=n, depth=depth, max_tokens=20), **free)
        for n, kind in enumerate(kinds)
        for depth in (None, 2)[: 1 + n % 2]
        for free in [{} if kind else {"grammar": None}]
    ]
    alone = [run(direct, request)[0] for request in asked]
    together = run(direct, *asked)
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]
    assert [answer.finish_reason for answer in together] == [answer.finish_reason for answer in alone]


def test_reasoning_is_what_it_is_without_a_grammar_and_the_answer_fits(direct: DirectEngine) -> None:
    for seed in range(2):
        bound = ask(direct, "regex", thinking=True, seed=seed, max_tokens=300)
        (free,), (kept,), (plain,) = (
            run(direct, replace(bound, grammar=None)), run(direct, bound), run(direct, replace(bound, depth=0)),
        )  # fmt: skip
        assert kept.ids == plain.ids
        assert kept.reasoning == free.reasoning != ""
        assert fits("regex", kept.text)
        assert not fits("regex", free.text)


WARM = Sampling(temperature=2.0)  # of the distribution tests: this model is too sure of itself for many words to occur


@dataclass(frozen=True)
class Language:
    """A few words, and the probability of each behind a prompt under the model kept to them."""

    prompt: tuple[int, ...]
    grammar: Grammar
    chances: dict[str, float]


def read(direct: DirectEngine, row: Row) -> Rows:
    """A row whose prompt is read."""
    prefill = Prefill(direct.loaded.spec, row)
    while not prefill.finished:
        prefill.advance(512)
    return prefill.rows()


def logits_behind(direct: DirectEngine, prompt: tuple[int, ...], branches: list[list[int]]) -> np.ndarray:
    """The model's logits behind the prompt and each of the branches, which are of one length: [branches, V]."""
    spec, state = direct.loaded.spec, read(direct, row_of(direct, Request(prompt))).state.select([0] * len(branches))
    hidden = spec.hidden(mx.array([[prompt[-1], *branch] for branch in branches]), state)
    return np.array(spec.logits(hidden)[:, -1], dtype=np.float64)


@cache
def compiler_of(direct: DirectEngine) -> GrammarCompiler:
    return GrammarCompiler(direct.loaded.chat, direct.loaded.spec.vocab_size)


def row_of(direct: DirectEngine, request: Request, emit: EventSink = lambda event: None) -> Row:
    """A row as the engine makes it of a request."""
    grammar = None if request.grammar is None else compiler_of(direct).compile(request.grammar, request.prompt)
    return Row(request, request.seed or 0, "mtp", direct.loaded.chat, 2048, emit, grammar=grammar)


@pytest.fixture(scope="module")
def language(direct: DirectEngine) -> Language:
    """Texts of three tokens, each one of the model's likeliest there, with about as likely ones left out beside it: a
    head that knows nothing of the grammar drafts about as often out of it as into it."""
    chat = direct.loaded.chat
    prompt = (*chat.render([{"role": "user", "content": PROMPTS[1]}], thinking=False), *chat.encode("The fox saw a"))
    branches: list[list[int]] = [[]]
    for ranks in ((0, 1, 3), (0, 2, 3, 5), (1, 2)):
        grown = []
        for branch, logits in zip(branches, logits_behind(direct, prompt, branches), strict=True):
            order = np.argsort(-logits)[:60].tolist()
            plain = [t for t in order if t not in chat.special_ids and chat.token_bytes(t).isascii()]
            grown += [[*branch, plain[rank]] for rank in ranks]
        branches = grown
    grammar = Grammar("regex", "|".join(re.escape(chat.decode(branch)) for branch in branches))
    return Language(prompt, grammar, exact(direct, prompt, grammar))


def exact(direct: DirectEngine, prompt: tuple[int, ...], grammar: Grammar) -> dict[str, float]:
    """The probability of each answer under the model kept to the grammar, token by token, over all ways to spell it.
    Ways that are rarer than 1 in 10,000 are left out."""
    chat, compiler = direct.loaded.chat, compiler_of(direct)
    found: Counter[str] = Counter()
    level: list[tuple[list[int], float]] = [([], 1.0)]
    while level:
        following: list[tuple[list[int], float]] = []
        for (ids, chance), logits in zip(level, logits_behind(direct, prompt, [ids for ids, _ in level]), strict=True):
            place = compiler.compile(grammar, prompt)
            for token in ids:
                place.take(token)
            if place.complete:
                found[chat.decode(ids)] += chance
                continue
            bits = np.unpackbits(np.frombuffer(place.masks(())[0], dtype=np.uint8), bitorder="little")
            passing = np.flatnonzero(bits)
            weights = np.exp((logits[passing] - logits[passing].max()) / WARM.temperature)
            for token, share in zip(passing.tolist(), (weights / weights.sum()).tolist(), strict=True):
                if token in chat.eos_ids:
                    found[chat.decode(ids)] += chance * share
                elif chance * share > 1e-4:
                    following.append(([*ids, token], chance * share))
        level = following
    return dict(found)


def drawn(direct: DirectEngine, language: Language, rule: AcceptRule, depth: int, seeds: range) -> Counter[str]:
    """One word for each seed, by the engine's step over all of them at once."""
    spec, count = direct.loaded.spec, len(seeds)
    texts: dict[str, list[str]] = {}

    def emit(event: Event) -> None:
        if isinstance(event, TokenEvent):
            texts.setdefault(event.request_id, []).extend(span.text for span in event.spans)

    request = Request(language.prompt, WARM, accept_rule=rule, grammar=language.grammar)
    one, index = read(direct, row_of(direct, request)), mx.zeros((count,), dtype=mx.int32)
    assert one.backlog is not None
    backlog = Backlog(one.backlog.hidden[index], one.backlog.tokens[index], one.backlog.fresh[index])
    rows = [row_of(direct, replace(request, seed=seed, id=f"d{seed}"), emit) for seed in seeds]
    batch: Rows | None = Rows(rows, one.state.select([0] * count), one.pending[index], backlog, None, spec.vocab_size)
    while batch is not None:
        outcome = speculate(spec, batch, StepPlan([depth] * len(batch)))
        mx.eval(outcome, batch.arrays())
        for row, numbers in zip(batch.rows, outcome.ints.tolist(), strict=True):
            accepted = numbers[2 * depth + 1]
            row.step(RowStep(numbers[: accepted + 1], numbers[depth + 1 : 2 * depth + 1]), 0.0, 1, 1)
        left = [place for place, row in enumerate(batch.rows) if row.finished is None]
        batch = batch.select(left) if left else None
    return Counter("".join(pieces) for pieces in texts.values())


def p_value(counts: Counter[str], expected: dict[str, float]) -> float:
    total = counts.total()
    big = [word for word, chance in expected.items() if chance * total >= 5]
    assert len(big) > 5, "the case judges nothing"
    seen = np.array([*(counts[w] for w in big), total - sum(counts[w] for w in big)])
    wanted = np.array([*(expected[w] * total for w in big), total * (1 - sum(expected[w] for w in big))])
    kept = wanted > 1e-6
    return float(chdtrc(kept.sum() - 1, ((seen - wanted)[kept] ** 2 / wanted[kept]).sum()))


@pytest.mark.parametrize(
    ("rule", "depth", "count"),
    [
        ("rejection", 2, 200),
        *(
            pytest.param(rule, depth, 1600, marks=pytest.mark.slow)
            for rule, depth in [("rejection", 2), ("rejection", 4), ("block", 3), ("coupled", 2)]
        ),
    ],
)
def test_words_come_with_the_chances_of_the_model_kept_to_them(
    direct: DirectEngine, language: Language, rule: AcceptRule, depth: int, count: int
) -> None:
    """Drafts behind the first are drawn without a mask, so many of them are refused by it: what is drawn in their
    place must come from what is left of p beside q. Alpha is 0.001; a limit that is cut in front of such a draft, so
    that p is drawn from instead, gave 0.000002 with 1,500 words at depth 2."""
    assert 0.98 < sum(language.chances.values()) < 1 + 1e-9
    counts: Counter[str] = Counter()
    for first in range(0, count, 200):
        counts += drawn(direct, language, rule, depth, range(first, first + 200))
    assert counts.total() == count
    assert p_value(counts, language.chances) > 1e-3


def test_forced_spans_are_drafts_that_are_never_refused(direct: DirectEngine) -> None:
    long = Grammar("regex", "The quick brown fox jumps over the lazy dog, [ab] and then it sleeps for a whole day\\.")
    for rule in ("rejection", "block", "coupled"):
        events: list[Event] = []
        request = ask(direct, "regex", grammar=long, accept_rule=rule)
        (drafted,) = direct.run([request], events.append)
        (plain,) = run(direct, replace(request, depth=0, accept_rule="coupled"))
        assert re.fullmatch(long.text, drafted.text)
        forced = [e for e in events if isinstance(e, StepEvent) and e.source == "grammar"]
        assert sum(e.drafted for e in forced) > 0.7 * len(drafted.ids)
        assert all(e.accepted == min(e.drafted, len(e.tokens)) and e.refused is None for e in forced)
        assert drafted.stats.steps <= 5
        assert plain.stats.steps == len(plain.ids)


def test_the_answer_ends_where_nothing_may_follow_without_an_end_token(direct: DirectEngine) -> None:
    (answer,) = run(direct, ask(direct, "regex", grammar=Grammar("regex", "[ab]{3}")))
    assert answer.finish_reason == "stop"
    assert re.fullmatch("[ab]{3}", answer.text)
    assert not set(answer.ids) & direct.loaded.chat.eos_ids
    assert answer.usage.completion_tokens == len(answer.ids)


def test_a_whole_answer_at_the_budgets_last_token_is_a_stop_and_half_of_one_is_a_length(direct: DirectEngine) -> None:
    (whole,) = run(direct, ask(direct, "json_schema"))
    for budget in range(len(whole.ids) - 3, len(whole.ids) + 1):
        (cut,) = run(direct, ask(direct, "json_schema", max_tokens=budget))
        assert cut.ids == whole.ids[:budget]
        assert cut.finish_reason == ("stop" if budget == len(whole.ids) else "length")


def test_stop_strings_penalties_and_logprobs_beside_a_grammar(direct: DirectEngine) -> None:
    sampling = Sampling(
        presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.1, logit_bias=((300, -100.0),)
    )
    request = ask(direct, "json_schema", sampling=sampling, logprobs=2)
    (plain,), (drafted,) = run(direct, replace(request, depth=0)), run(direct, request)
    assert plain.ids == drafted.ids
    assert fits("json_schema", drafted.text)
    assert [t.id for t in drafted.logprobs] == list(drafted.ids)
    for a, b in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-3), "the model's own, not the masked ones"
    assert min(t.logprob for t in drafted.logprobs) < -8, "the model alone would not have written this"
    (stopped,) = run(direct, replace(request, stop=('"age":',)))
    assert stopped.finish_reason == "stop"
    assert stopped.text == drafted.text[: drafted.text.index('"age":')]


def test_a_cancelled_answer_is_a_beginning_and_the_engine_goes_on(engine: ThreadEngine, direct: DirectEngine) -> None:
    request = ask(direct, "json", seed=3, max_tokens=400, grammar=Grammar("regex", "[a-z ]{600}"))
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(request, events.put)
    while not isinstance(events.get(), TokenEvent):
        pass
    engine.cancel(request.id)
    while not isinstance(event := events.get(), FinishEvent):
        pass
    assert event.reason == "cancelled"
    again = ask(direct, "json_schema")
    assert complete(engine, again).ids == run(direct, again)[0].ids


def test_refusals_come_at_submit_and_leave_nothing(engine: ThreadEngine, direct: DirectEngine) -> None:
    request = ask(direct, "json")
    for grammar in (Grammar("regex", "[a"), Grammar("lark", "start: A\nA: /a/ & /b/"), Grammar("json_schema", "{}}")):
        with pytest.raises(BadRequestError) as refusal:
            engine.submit(replace(request, grammar=grammar), lambda event: pytest.fail(str(event)))
        assert refusal.value.param == "grammar"
    assert complete(engine, request).error is None


def test_a_grammar_that_gets_too_complex_ends_its_own_answer_alone(engine: ThreadEngine, direct: DirectEngine) -> None:
    many = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}})
    beside = ask(direct, "json_schema", id="beside")
    alone = run(direct, beside)[0]
    hit, unhurt = complete_all(engine, [ask(direct, "json", grammar=Grammar("json_schema", many)), beside])
    assert hit.finish_reason == "error"
    assert "Simplify the grammar" in (hit.error or "")
    assert unhurt.ids == alone.ids


def test_without_a_head_the_same_is_said(direct: DirectEngine) -> None:
    plain = DirectEngine(EngineConfig(mode="ar"))
    for name in ("json_schema", "lark"):
        assert (
            run(plain, ask(direct, name, max_tokens=60))[0].ids == run(direct, ask(direct, name, max_tokens=60))[0].ids
        )


def test_in_a_process_of_its_own_a_grammar_is_kept_and_a_bad_one_refused(direct: DirectEngine) -> None:
    engine = ProcessEngine(EngineConfig())
    try:
        engine.wait_ready()
        request = ask(direct, "json_schema")
        assert complete(engine, request).ids == run(direct, request)[0].ids
        with pytest.raises(BadRequestError, match="unclosed"):
            engine.submit(replace(request, grammar=Grammar("regex", "[a")), lambda event: None)
    finally:
        assert engine.close()
