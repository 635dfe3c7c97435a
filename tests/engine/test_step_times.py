"""The times that the depth policies are given: of one step alone, or none."""

import random
from collections.abc import Sequence
from itertools import pairwise

from engine.bench.runs import GREEDY
from engine.direct import DirectEngine
from engine.request import Request

Told = tuple[str, int, float | None]


class Changing:
    """A depth policy that changes its depth after every third step, and adds what it is told to a list."""

    def __init__(self, name: str, told: list[Told]) -> None:
        self._name = name
        self._told = told
        self._chosen = 0

    def choose(self, rows: int) -> int:
        self._chosen += 1
        return 1 + (self._chosen - 1) // 3 % 2

    def observe(
        self, rows: int, depth: int, judged: Sequence[int], accepted: Sequence[int], seconds: float | None
    ) -> None:
        self._told.append((self._name, depth, seconds))


def steps(engine: DirectEngine, prompt: Sequence[int]) -> list[Told]:
    """(who drafted, how many, seconds) of each step of an answer, in their order."""
    planner = engine._runner._planner
    told: list[Told] = []
    own = planner._head, planner._copied
    planner._head, planner._copied = Changing("head", told), Changing("copy", told)
    try:
        engine.run([Request(tuple(prompt), GREEDY, max_tokens=40, ignore_eos=True)])
    finally:
        planner._head, planner._copied = own
    return told


def test_a_step_has_a_time_where_the_one_that_overlaps_it_is_of_its_depth(small: DirectEngine) -> None:
    told = steps(small, random.Random(1).sample(range(250), 30))
    assert told[0][2] is None, "the first one's time holds the end of the prompt"
    for (_, depth, seconds), (_, after, _) in pairwise(told[1:-1]):
        assert (seconds is None) == (after != depth)
        assert seconds is None or seconds > 0


def test_a_step_between_drafts_of_the_head_and_copies_has_none_of_its_own(small: DirectEngine) -> None:
    told = steps(small, random.Random(1).sample(range(250), 12) * 3)
    names = [name for name, _, _ in told]
    assert {"head", "copy"} <= set(names), "the prompt repeats itself, and the model does not go on with it for ever"
    for (before, _, _), (name, _, seconds) in pairwise(told):
        if before != name == "head":
            assert seconds is None, "the next one was launched before it was read, and it was launched behind none"
    for (name, _, seconds), (after, _, _) in pairwise(told[1:]):
        if name == "head" and after == "copy":
            assert seconds is None
        if name == "copy":
            assert seconds is not None, "copies are read before anything is launched behind them"
