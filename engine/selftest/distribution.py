"""Chi-square of what rejection sampling emits against the model's own distribution."""

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from engine.models.load import LoadedModel
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.request import Request, Sampling
from engine.row import Row
from engine.rows import Rows
from engine.sampler import Filters
from engine.selftest.check import Check
from engine.step import StepPlan, speculate

PROMPT = "Tell me a short story."
OPENING = "The old woman looked at the sea and"  # nothing the bundled model knows: two drafts in three are refused
SAMPLING = Sampling(temperature=1.2)
DEPTH = 2
BATCH = 64
MOST, FEWEST = 8192, 1024
SECONDS = 40.0
FIRST_TOKENS = 24  # first tokens whose followers are told apart; the rest share one cell
MIN_EXPECTED = 5.0
ALPHA = 1e-3

Pair = tuple[int, int]


def joint_distribution(loaded: LoadedModel, progress: Callable[[str], None] = lambda line: None) -> Check:
    """Draw pairs of tokens by speculation under the rejection rule, and hold their counts against p(a) p(b | a)."""
    chat = loaded.chat
    prompt = chat.render([{"role": "user", "content": PROMPT}], thinking=False) + chat.encode(OPENING)
    expected = _expected(loaded.spec, prompt)
    counts: Counter[Pair] = Counter()
    started, drawn = time.monotonic(), 0
    while drawn < MOST and (drawn < FEWEST or time.monotonic() - started < SECONDS):
        counts.update(_pairs(loaded, prompt, first_seed=drawn))
        drawn += BATCH
        if drawn % (16 * BATCH) == 0:
            progress(f"drawing pairs under rejection: {drawn}")
    statistic, freedom = chi_square(counts, expected, drawn)
    p = chi_square_p(statistic, freedom)
    detail = (
        f"two-token joints at T = {SAMPLING.temperature:g}, depth {DEPTH}: N = {drawn}, chi-square {statistic:.1f} "
        f"on {freedom} degrees of freedom, p = {p:.3g} (fails under {ALPHA:g})"
    )
    return Check("rejection_joint_distribution", p >= ALPHA and freedom >= 3, p, detail)


def _expected(spec: SpecModel, prompt: tuple[int, ...]) -> dict[Pair, float]:
    """p(a) p(b | a) for the likeliest first tokens a; the missing mass is every other pair."""
    filters = Filters.of([SAMPLING], spec.vocab_size)
    first = _next(spec, filters, prompt)
    ranked = sorted(range(len(first)), key=lambda token: -first[token])[:FIRST_TOKENS]
    joint = {}
    for a in ranked:
        for b, share in enumerate(_next(spec, filters, (*prompt, a))):
            joint[(a, b)] = first[a] * share
    return joint


def _next(spec: SpecModel, filters: Filters, prompt: tuple[int, ...]) -> list[float]:
    state = spec.new_state()
    state.read(True)
    logits = spec.logits(spec.hidden(mx.array([prompt]), state)[:, -1:])
    shares: Any = mx.softmax(filters.scores(logits), axis=-1)[0, 0].tolist()
    return list(shares)


def _pairs(loaded: LoadedModel, prompt: tuple[int, ...], first_seed: int) -> list[Pair]:
    """One pair of tokens from each of BATCH seeds."""
    request = Request(prompt, SAMPLING, accept_rule="rejection", depth=DEPTH)
    made: list[list[int]] = [[] for _ in range(BATCH)]
    rows = _replicas(loaded, request, first_seed)
    left = list(range(BATCH))
    while left:
        outcome = speculate(loaded.spec, rows, StepPlan([DEPTH] * len(rows)))
        mx.eval(outcome, rows.arrays())
        ints: Any = outcome.ints.tolist()
        for row, numbers in zip(left, ints, strict=True):
            made[row] += numbers[: numbers[2 * DEPTH + 1] + 1]
        keep = [place for place, row in enumerate(left) if len(made[row]) < 2]
        left = [left[place] for place in keep]
        if left:
            rows = rows.select(keep)
    return [(ids[0], ids[1]) for ids in made]


def _replicas(loaded: LoadedModel, request: Request, first_seed: int) -> Rows:
    """One prompt's state, BATCH times, each with a seed of its own."""
    info = loaded.info

    def row(seed: int) -> Row:
        return Row(request, seed, "mtp", loaded.chat, info.context, lambda event: None)

    prefill = Prefill(loaded.spec, row(0))
    prefill.advance(prefill.total)
    one = prefill.rows()
    many = one.select([0] * BATCH)
    return Rows(
        [row(first_seed + i) for i in range(BATCH)], many.state, many.pending, many.backlog, None, one.vocab_size
    )


def chi_square(counts: Counter[Pair], expected: dict[Pair, float], drawn: int) -> tuple[float, int]:
    """(statistic, degrees of freedom); cells that expect fewer than MIN_EXPECTED are pooled into one."""
    statistic, cells = 0.0, 0
    rest_seen, rest_expected = float(drawn), float(drawn)
    for pair, share in expected.items():
        mean = share * drawn
        if mean >= MIN_EXPECTED:
            statistic += (counts[pair] - mean) ** 2 / mean
            cells += 1
            rest_seen -= counts[pair]
            rest_expected -= mean
    if rest_expected >= MIN_EXPECTED:
        statistic += (rest_seen - rest_expected) ** 2 / rest_expected
        cells += 1
    return statistic, cells - 1


def chi_square_p(statistic: float, freedom: int) -> float:
    """Upper tail probability, by Wilson and Hilferty's cube-root normal approximation (1931)."""
    if freedom < 1:
        return 1.0
    scale = 2.0 / (9.0 * freedom)
    z = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - scale)) / math.sqrt(scale)
    return 0.5 * math.erfc(z / math.sqrt(2.0))
