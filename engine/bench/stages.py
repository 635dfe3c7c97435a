"""One step cut into its stages, each evaluated before the next begins: what they cost the device, one by one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx

from engine.bench.runs import GREEDY
from engine.models.load import LoadedModel
from engine.prefill import Prefill
from engine.request import Request
from engine.row import Row
from engine.rows import Rows
from engine.step import StepPlan, advance, draft, judge

CHUNK = 512
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One step, in seconds. Each stage but `read` is the evaluation alone; building all their graphs is `build`.

    Attributes:
        draft: the head reads what it still has to, and chains its drafts.
        verify: the trunk over the block, and its logits.
        accept: noise, filters and the accept rule.
        advance: caches, backlog and the pending token.
        read: the step's numbers to the host.
        tokens: that the step made.
    """

    build: float
    draft: float
    verify: float
    accept: float
    advance: float
    read: float
    tokens: int

    @property
    def device(self) -> float:
        return self.draft + self.verify + self.accept + self.advance


class StagedRow:
    """One greedy row, stepped by the engine's own stages with an evaluation behind each; prompt ids as `prompt`."""

    def __init__(self, loaded: LoadedModel, prompt: tuple[int, ...], depth: int, acceptance: float | None) -> None:
        self._spec = loaded.spec
        self._plan = StepPlan([depth], acceptance=acceptance)
        request = Request(prompt, GREEDY, seed=0, depth=depth, source="bench")
        row = Row(request, 0, loaded.info.mode, loaded.chat, loaded.info.context, lambda event: None)
        prefill = Prefill(loaded.spec, row)
        while not prefill.finished:
            prefill.advance(CHUNK)
        self._row = row
        self._rows: Rows = prefill.rows()

    def step(self) -> StageTimes:
        """One step, its five stages timed."""
        rows, spec = self._rows, self._spec
        drafts, build_draft, draft_s = _timed(
            lambda: draft(spec, rows, self._plan), lambda drafts: [drafts.ids, *rows.state.arrays()]
        )
        block = mx.concatenate([rows.pending[:, None], drafts.ids], axis=1)
        hidden, build_hidden, hidden_s = _timed(lambda: spec.hidden(block, rows.state), lambda hidden: [hidden])
        logits, build_logits, logits_s = _timed(lambda: spec.logits(hidden), lambda logits: [logits])
        verdict, build_accept, accept_s = _timed(
            lambda: judge(rows, logits, drafts, self._plan), lambda verdict: [verdict.tokens, verdict.accepted]
        )
        _, build_advance, advance_s = _timed(lambda: advance(spec, rows, hidden, verdict), lambda _: rows.arrays())
        begun = time.perf_counter()
        accepted: Any = verdict.accepted.tolist()
        tokens: Any = verdict.tokens.tolist()
        read_s = time.perf_counter() - begun
        self._row.made += tokens[0][: accepted[0] + 1]
        rows.tighten(in_flight=0)
        build = build_draft + build_hidden + build_logits + build_accept + build_advance
        return StageTimes(build, draft_s, hidden_s + logits_s, accept_s, advance_s, read_s, accepted[0] + 1)


def evaluation_overhead(times: int = 50) -> float:
    """Median seconds of evaluating next to nothing: what one evaluation costs apart from its work."""
    spent = []
    for number in range(times):
        array = mx.array(number)
        mx.eval(array)
        _, _, seconds = _timed(lambda array=array: array + 1, lambda result: [result])  # type: ignore[misc]
        spent.append(seconds)
    return sorted(spent)[times // 2]


def _timed(build: Callable[[], T], arrays: Callable[[T], Sequence[mx.array]]) -> tuple[T, float, float]:
    """(what was built, seconds to build it, seconds to evaluate its arrays)."""
    begun = time.perf_counter()
    made = build()
    built = time.perf_counter()
    mx.eval(*arrays(made))
    return made, built - begun, time.perf_counter() - built
