"""The process in which grammars are compiled first: it ends what would not end, and is there again for the next."""

import gc
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLMatcher

from engine.grammar_guard import GrammarGuard

GOOD = LLMatcher.grammar_from_regex("ab*")
ENDLESS = LLMatcher.grammar_from_json_schema(json.dumps({"type": "integer", "multipleOf": 999_983}))
SPECIAL = [(7, "<end>"), (900, "<tag>")]


@pytest.fixture
def guard() -> GrammarGuard:
    return GrammarGuard(1000, SPECIAL)


def test_it_starts_with_the_first_grammar_and_stays(guard: GrammarGuard) -> None:
    assert guard._process is None
    assert guard.passes(GOOD)
    first = guard._process
    assert guard.passes(GOOD)
    assert guard._process is first


@pytest.mark.parametrize(
    "source",
    [
        LLMatcher.grammar_from_lark('start: <[900]> "é" <tag>'),
        LLMatcher.grammar_from_lark("start: missing"),
        LLMatcher.grammar_from_regex("[a"),
        LLMatcher.grammar_from_json_schema('{"not": {}}'),
        "no grammar at all",
        "\ud800",
        "",
    ],
)
def test_what_is_wrong_with_a_grammar_is_not_its_to_say(guard: GrammarGuard, source: str) -> None:
    assert guard.passes(source)


def test_what_does_not_end_is_ended_and_the_next_grammar_is_well(guard: GrammarGuard) -> None:
    assert not guard.passes(ENDLESS)
    assert guard.passes(GOOD)


def test_it_is_started_again_where_it_has_died(guard: GrammarGuard) -> None:
    assert guard.passes(GOOD)
    assert guard._process is not None
    guard._process.kill()
    guard._process.wait()
    assert guard.passes(GOOD)


def test_many_threads_may_use_it(guard: GrammarGuard) -> None:
    with ThreadPoolExecutor(4) as threads:
        passed = list(threads.map(guard.passes, [GOOD, ENDLESS, GOOD, GOOD]))
    assert passed == [True, False, True, True]


def test_its_process_ends_with_it() -> None:
    guard = GrammarGuard(1000, SPECIAL)
    assert guard.passes(GOOD)
    process = guard._process
    assert process is not None
    del guard
    gc.collect()
    assert process.wait(10) is not None
