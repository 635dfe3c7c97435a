"""The contract between trunk and head, on a model that drafts perfectly where it is kept and hardly ever elsewhere.

Drafting never changes a text, so a wrong contract shows in nothing but acceptance.
"""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from lookup_model import MODULUS, Mistake, rule, save_lookup

from engine.caches.state import ModelState
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.models.probe import agreement
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.readers import read
from engine.request import MAX_DEPTH, Request, Sampling
from engine.row import Row
from engine.step import StepPlan, speculate

WRONG = 0.1
START = [3, 100, 7]
RANDOM = [int(x) for x in mx.random.randint(0, MODULUS, (128,), key=mx.random.key(0)).tolist()]
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DirectEngine]:
    """Builds and loads the model, with a mistake in its checkpoint or with another class for its forward."""

    def load(mistake: Mistake = "none", kind: type[SpecModel] = SpecModel) -> DirectEngine:
        folder: Path = tmp_path_factory.mktemp("lookup") / "model"
        engine = DirectEngine(EngineConfig(model=str(save_lookup(folder, mistake))))
        engine.loaded.spec.__class__ = kind
        return engine

    return load


def decoded(engine: DirectEngine, depth: int, tokens: int = 48) -> list[float]:
    """Acceptance at each depth over one answer; the text itself must be the rule's, whatever was drafted."""
    prompt = rule(START, 13)
    (answer,) = engine.run([Request(tuple(prompt), GREEDY, max_tokens=tokens, depth=depth)])
    assert answer.error is None
    assert list(answer.ids) == rule(prompt, tokens)[len(prompt) :]
    stats = answer.stats
    return [a / j for a, j in zip(stats.accepted_by_depth, stats.drafted_by_depth, strict=True) if j]


class PreNormHidden(SpecModel):
    """Gives the head the trunk's hidden from before its final norm (up to a factor, which the head's norm removes)."""

    def head_hidden(self, tokens: mx.array, hidden: mx.array, state: ModelState) -> mx.array:
        return super().head_hidden(tokens, hidden / self._trunk.norm.weight, state)


class PreNormRecycled(SpecModel):
    """Recycles the head's hidden from before its own final norm; its drafts are still made from the one after it."""

    def head_hidden(self, tokens: mx.array, hidden: mx.array, state: ModelState) -> mx.array:
        assert self.head is not None
        norm, self.head.norm = self.head.norm, nn.Identity()
        raw = super().head_hidden(tokens, hidden, state)
        self.head.norm = norm
        return raw

    def draft_logits(self, hidden: mx.array) -> mx.array:
        assert self.head is not None
        return super().draft_logits(self.head.norm(hidden))


class OwnToken(SpecModel):
    """Gives the head the token at each hidden's own position instead of the one after it."""

    def head_hidden(self, tokens: mx.array, hidden: mx.array, state: ModelState) -> mx.array:
        return super().head_hidden(mx.concatenate([tokens[:, :1], tokens[:, :-1]], axis=1), hidden, state)


class NoHistory(SpecModel):
    """Lets the head see nothing but the rows of its current call."""

    def head_hidden(self, tokens: mx.array, hidden: mx.array, state: ModelState) -> mx.array:
        for cache in state.head:
            cache.keys = cache.values = ()
        return super().head_hidden(tokens, hidden, state)


class ForgetsTheBorder(Prefill):
    """Pairs hiddens and tokens inside a chunk only: its last hidden, whose token is in the next, gets no row."""

    def _read(self, tokens: mx.array) -> mx.array:
        if self._hidden is not None:
            self._state.head_clock.advance_all(1)
        return read(self._spec, tokens, None, self._state)


def test_a_head_that_keeps_the_contract_agrees_everywhere(lookup: Callable[..., DirectEngine]) -> None:
    spec = lookup().loaded.spec
    assert agreement(spec, mx.array([rule(START, 100)])) > 0.97  # a prompt has no tokens before its first
    assert agreement(spec, mx.array([RANDOM])) > 0.97


@pytest.mark.parametrize("depth", range(1, MAX_DEPTH + 1))
def test_every_draft_at_every_depth_is_accepted(lookup: Callable[..., DirectEngine], depth: int) -> None:
    assert decoded(lookup(), depth) == [1.0] * depth


@pytest.mark.parametrize("mistake", ["concat", "same_position"])
def test_a_head_made_for_another_contract_is_refused_nearly_always(
    lookup: Callable[..., DirectEngine], mistake: Mistake
) -> None:
    engine = lookup(mistake)
    assert agreement(engine.loaded.spec, mx.array([RANDOM])) < WRONG
    assert decoded(engine, 1)[0] < WRONG


@pytest.mark.parametrize("kind", [PreNormHidden, OwnToken])
def test_a_wrong_input_of_the_head_shows_in_the_agreement(
    lookup: Callable[..., DirectEngine], kind: type[SpecModel]
) -> None:
    assert agreement(lookup(kind=kind).loaded.spec, mx.array([RANDOM])) < WRONG


@pytest.mark.parametrize("kind", [PreNormHidden, NoHistory])
def test_a_wrong_hidden_or_a_forgotten_cache_is_refused_nearly_always(
    lookup: Callable[..., DirectEngine], kind: type[SpecModel]
) -> None:
    assert decoded(lookup(kind=kind), 1)[0] < WRONG


def test_the_recycled_hidden_is_the_one_after_the_heads_norm(lookup: Callable[..., DirectEngine]) -> None:
    first, second, *_ = decoded(lookup(kind=PreNormRecycled), 3)
    assert first == 1.0
    assert second < WRONG


def first_step(engine: DirectEngine, kind: type[Prefill], chunk: int) -> int:
    """How many of the first step's 4 drafts are accepted behind a prompt of 17 tokens, read in chunks."""
    prompt, loaded = rule(START, 14), engine.loaded
    row = Row(Request(tuple(prompt), GREEDY), 0, "mtp", loaded.chat, loaded.info.context, lambda event: None)
    prefill = kind(loaded.spec, row)
    while not prefill.finished:
        prefill.advance(chunk)
    ints = speculate(loaded.spec, prefill.rows(), StepPlan([4])).ints[0].tolist()
    assert ints[:1] == rule(prompt, 1)[-1:]
    return int(ints[2 * 4 + 1])


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 15, 16])
def test_the_first_step_drafts_from_a_whole_history(lookup: Callable[..., DirectEngine], chunk: int) -> None:
    assert first_step(lookup(), Prefill, chunk) == 4


@pytest.mark.parametrize("chunk", [3, 5, 15])  # 16 pairs: the last chunk is one long, so the border is what counts
def test_one_row_that_is_missing_where_two_chunks_meet_costs_the_step(
    lookup: Callable[..., DirectEngine], chunk: int
) -> None:
    assert first_step(lookup(), ForgetsTheBorder, chunk) == 0
