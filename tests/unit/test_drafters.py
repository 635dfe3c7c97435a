"""Copying from the context: when it engages, what it proposes, and that it parks itself."""

from engine.drafters import FIRST_MATCH, LAST_MATCH, CopyDrafter

SPAN = list(range(100, 140))


def test_it_proposes_what_followed_the_same_tokens_before() -> None:
    drafter = CopyDrafter([1, 2, *SPAN, 3, 4])
    drafter.extend(SPAN[:FIRST_MATCH])
    assert drafter.ready
    assert drafter.propose(5) == SPAN[FIRST_MATCH : FIRST_MATCH + 5]


def test_a_short_match_proposes_nothing() -> None:
    drafter = CopyDrafter([1, 2, *SPAN, 3, 4])
    drafter.extend(SPAN[: FIRST_MATCH - 1])
    assert not drafter.ready
    assert drafter.propose(5) == []


def test_the_latest_of_two_places_is_copied() -> None:
    drafter = CopyDrafter([*SPAN, 7, *SPAN, 8])
    drafter.extend(SPAN)
    assert drafter.propose(1) == [8]


def test_a_repetition_goes_on_beyond_the_end() -> None:
    drafter = CopyDrafter([5, 6] * 10)
    assert drafter.propose(6) == [5, 6, 5, 6, 5, 6]


def test_spans_that_fail_need_longer_matches_and_success_shortens_them() -> None:
    drafter = CopyDrafter([1, 2, *SPAN, 3, 4])
    drafter.extend(SPAN[:FIRST_MATCH])
    drafter.observe(8, 1)
    assert not drafter.ready
    drafter.extend(SPAN[FIRST_MATCH : 2 * FIRST_MATCH])
    assert drafter.ready
    for _ in range(5):
        drafter.observe(8, 0)
    drafter.extend(SPAN[2 * FIRST_MATCH : LAST_MATCH - 1])
    assert not drafter.ready
    drafter.extend(SPAN[LAST_MATCH - 1 : LAST_MATCH])
    assert drafter.ready
    for _ in range(5):
        drafter.observe(8, 8)
    drafter.extend([9, *SPAN[:FIRST_MATCH]])
    assert drafter.ready


def test_tokens_that_never_occurred_propose_nothing() -> None:
    drafter = CopyDrafter(list(range(50)))
    drafter.extend(list(range(60, 90)))
    assert drafter.propose(4) == []


def test_a_prompt_shorter_than_the_gram_is_no_problem() -> None:
    drafter = CopyDrafter([1])
    assert drafter.propose(4) == []
    drafter.extend([1, 1, 1, 1, 1, 1, 1, 1, 1])
    assert drafter.propose(3) == [1, 1, 1]
