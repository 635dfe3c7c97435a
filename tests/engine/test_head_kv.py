"""The head's cache holds one row for every committed position, as one pass over the whole text would leave it.

A row that is missing, doubled or made from a recycled hidden changes no text; it only costs acceptance.
"""

import random
from collections.abc import Sequence
from copy import copy
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_model import rule, save_lookup
from tiny_models import BYTES, make, opened, save

from engine import step
from engine.accept import Verdict
from engine.caches.kv import KVCache
from engine.direct import DirectEngine
from engine.models.load import LoadedModel
from engine.prefill import Prefill
from engine.request import Request, Sampling
from engine.row import Row
from engine.rows import BACKLOG, Rows

DEPTHS = st.integers(0, 4)


@pytest.fixture(scope="module", params=["qwen3_5", "llama"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(request.param, tmp_path_factory)


def load_tiny(family: str, folders: pytest.TempPathFactory) -> LoadedModel:
    folder = save(folders.mktemp(family) / "model", make(family), trunk="delta", head="delta", place="mtp.safetensors")
    return opened(folder)


class Text:
    """One row's committed tokens, the pending one included, beside the batch that it is decoded in."""

    def __init__(self, loaded: LoadedModel, prompt: Sequence[int], temperature: float = 0.0) -> None:
        self.ids = list(prompt)
        request = Request(tuple(prompt), Sampling(temperature=temperature))
        self.row = Row(request, 1, "mtp", loaded.chat, loaded.info.context, lambda event: None)

    def copy(self) -> "Text":
        """The same row, which goes on in a batch of its own."""
        other = copy(self)
        other.ids = list(self.ids)
        return other


def some(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(BYTES) for _ in range(length)]


def read(loaded: LoadedModel, text: Text, chunk: int) -> Rows:
    prefill = Prefill(loaded.spec, text.row)
    while not prefill.finished:
        prefill.advance(chunk)
    return prefill.rows()


def forced(loaded: LoadedModel, rows: Rows, texts: list[Text], depth: int, accepted: list[int], token: int) -> None:
    """A step of the engine's own parts in which row b accepts accepted[b] drafts, then says `token`."""
    drafts = step.draft(loaded.spec, rows, step.StepPlan([depth] * len(rows)))
    hidden = loaded.spec.hidden(mx.concatenate([rows.pending[:, None], drafts.ids], axis=1), rows.state)
    tokens = mx.concatenate([drafts.ids, mx.full((len(rows), 1), token, dtype=mx.int32)], axis=1)
    kept = mx.array(accepted, dtype=mx.int32)
    tokens = mx.where(mx.arange(depth + 1) == kept[:, None], token, tokens)
    step.advance(loaded.spec, rows, hidden, Verdict(tokens, kept))
    take(rows, texts, tokens.tolist(), accepted)


def spoken(loaded: LoadedModel, rows: Rows, texts: list[Text], depth: int) -> None:
    """A step as the engine runs it."""
    ints = step.speculate(loaded.spec, rows, step.StepPlan([depth] * len(rows))).ints.tolist()
    take(rows, texts, ints, [numbers[2 * depth + 1] for numbers in ints])


def take(rows: Rows, texts: list[Text], tokens: list[list[int]], accepted: list[int]) -> None:
    mx.eval(rows.arrays())
    for text, made, kept in zip(texts, tokens, accepted, strict=True):
        text.ids += made[: kept + 1]
    rows.state.tighten(max(len(text.ids) - 1 for text in texts))


def check(loaded: LoadedModel, rows: Rows, texts: list[Text]) -> None:
    """Hold trunk, head and backlog of every row against one pass over its text."""
    state, backlog = rows.state, rows.backlog
    assert backlog is not None
    assert rows.pending.tolist() == [text.ids[-1] for text in texts]
    assert state.clock.offset.tolist() == [len(text.ids) - 1 for text in texts]
    for place, text in enumerate(texts):
        if len(text.ids) == 1:
            continue  # nothing is committed of a prompt of one token
        ids = mx.array([text.ids])
        scratch = loaded.spec.new_state()
        scratch.read(True)
        hidden = loaded.spec.hidden(ids[:, :-1], scratch)
        loaded.spec.head_hidden(ids[:, 1:], hidden, scratch)
        fresh, committed = int(backlog.fresh[place].item()), len(text.ids) - 1
        assert 1 <= fresh <= BACKLOG  # the last one waits, since the next draft starts from it
        if fresh < committed:
            assert apart(state.head[0].arrays(), scratch.head[0].arrays(), place, committed - fresh) < 1e-4
        waiting = slice(committed - fresh, committed)
        assert np.allclose(backlog.hidden[place, :fresh], hidden[0, waiting], atol=1e-4)
        assert backlog.tokens[place, :fresh].tolist() == text.ids[1:][waiting]
        for ours, theirs in zip(state.trunk, scratch.trunk, strict=True):
            length = committed if isinstance(ours, KVCache) else None  # a recurrent state has no slots
            assert apart(ours.arrays(), theirs.arrays(), place, length) < 1e-4


def apart(ours: list[mx.array], theirs: list[mx.array], row: int, slots: int | None) -> float:
    """Largest difference between one row's arrays, or their first slots, and those of a row on its own."""
    pairs = [(a[row], b[0]) for a, b in zip(ours, theirs, strict=True)]
    if slots is not None:
        pairs = [(a[:, :slots], b[:, :slots]) for a, b in pairs]
    return max(float(mx.abs(a - b).max()) for a, b in pairs)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 30), chunk=st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_a_prompt_read_in_chunks(tiny: LoadedModel, seed: int, length: int, chunk: int) -> None:
    text = Text(tiny, some(random.Random(seed), length))
    rows = read(tiny, text, chunk)
    check(tiny, rows, [text])


@given(
    seed=st.integers(0, 2**32),
    rows=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 7)), min_size=1, max_size=3),
    depths=st.lists(DEPTHS, min_size=1, max_size=8),
)
@settings(max_examples=15, deadline=None)
def test_any_depths_and_any_counts_of_accepted_drafts(
    tiny: LoadedModel, seed: int, rows: list[tuple[int, int]], depths: list[int]
) -> None:
    """Depth 0 among them, whose hiddens wait in the backlog; rows of a batch accept different numbers."""
    rng = random.Random(seed)
    texts = [Text(tiny, some(rng, length)) for length, _ in rows]
    batch = Rows.merge([read(tiny, text, chunk) for text, (_, chunk) in zip(texts, rows, strict=True)])
    for depth in depths:
        accepted = [rng.randint(0, depth) for _ in texts]
        forced(tiny, batch, texts, depth, accepted, rng.randrange(BYTES))
    check(tiny, batch, texts)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_rows_that_come_and_go(tiny: LoadedModel, seed: int) -> None:
    rng = random.Random(seed)
    texts = [Text(tiny, some(rng, rng.randint(1, 12))) for _ in range(2)]
    batch = Rows.merge([read(tiny, text, rng.randint(1, 7)) for text in texts])
    for _ in range(8):
        if len(texts) < 4 and rng.random() < 0.5:
            texts.append(Text(tiny, some(rng, rng.randint(1, 12))))
            batch = Rows.merge([batch, read(tiny, texts[-1], rng.randint(1, 7))])
        elif len(texts) > 1 and rng.random() < 0.5:
            keep = rng.sample(range(len(texts)), len(texts) - 1)
            texts, batch = [texts[i] for i in keep], batch.select(keep)
        depth = rng.choice([0, 0, 1, 2, 3])
        forced(tiny, batch, texts, depth, [rng.randint(0, depth) for _ in texts], rng.randrange(BYTES))
    check(tiny, batch, texts)


def test_plain_decoding_for_longer_than_the_backlog_holds(tiny: LoadedModel) -> None:
    """Two rows, the second joining late, so that one backlog is fuller than the other when it overflows."""
    rng = random.Random(1)
    texts = [Text(tiny, some(rng, length)) for length in (5, 9)]
    batch = read(tiny, texts[0], 3)
    for _ in range(20):
        spoken(tiny, batch, texts[:1], 0)
    batch = Rows.merge([batch, read(tiny, texts[1], 4)])
    for steps in range(21, 2 * BACKLOG + 1):
        spoken(tiny, batch, texts, 0)
        if steps in (BACKLOG - 2, BACKLOG - 1, BACKLOG, BACKLOG + 1, 2 * BACKLOG):
            check(tiny, batch, texts)
            drafting, longer = batch.select([0, 1]), [text.copy() for text in texts]
            spoken(tiny, drafting, longer, 2)
            spoken(tiny, drafting, longer, 1)
            check(tiny, drafting, longer)


def test_the_bundled_model_at_depths_that_vary(direct: DirectEngine) -> None:
    """A trained head, whose drafts are accepted now and refused then, in a ragged batch under rejection."""
    loaded, question = direct.loaded, "Sort these numbers: 42, 7, 19, 3."
    prompts = loaded.chat.render([{"role": "user", "content": question}]), some(random.Random(0), 11)
    texts = [Text(loaded, prompt, temperature=0.7) for prompt in prompts]
    batch = Rows.merge([read(loaded, text, 7) for text in texts])
    depths = [3, 0, 1, 0, 0, 4, 2, 8, 0, 3, 1, 2]
    for depth in depths:
        spoken(loaded, batch, texts, depth)
    made = [len(text.ids) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)]
    assert made[0] > len(depths)  # some were accepted
    assert made[1] < len(depths) + sum(depths)  # some were refused
    check(loaded, batch, texts)


def test_drafts_are_whole_again_after_any_stretch_of_plain_decoding(tmp_path: Path) -> None:
    """On the model whose drafts are refused where the head's cache lacks the row before: none ever is."""
    loaded = opened(save_lookup(tmp_path / "model"))
    text = Text(loaded, some(random.Random(0), 4))
    rows = read(loaded, text, 2)
    for plain in (1, 2, *range(BACKLOG - 6, BACKLOG + 2)):  # from a backlog of 5, so that one draft follows a full one
        for _ in range(plain):
            spoken(loaded, rows, [text], 0)
        length = len(text.ids)
        spoken(loaded, rows, [text], 4)
        assert len(text.ids) == length + 5
    assert text.ids == rule(text.ids[:4], len(text.ids) - 4)
