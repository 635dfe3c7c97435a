"""What each step drafts: how deep, and from the head or from the context. Learns from the steps before."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.depth import CostAwareDepth, DepthPolicy, FixedDepth
from engine.drafters import CopyDrafter
from engine.events import DraftSource
from engine.request import MAX_DEPTH
from engine.row import Row
from engine.step import StepPlan
from engine.tuned import Tuned

START = 3  # the first depth of the head's drafts, until something is known
COPIED_MOST, COPIED_FIRST = 15, 8  # tokens of a copied span in one step
FORCED_MOST = 15  # tokens that a grammar forces in one step


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """How one row's drafts went in a step. `judged` of them were, `accepted` stood."""

    source: DraftSource
    judged: int
    accepted: int


class Planner:
    """Makes a StepPlan for every step of a batch."""

    def __init__(self, config: EngineConfig, has_head: bool) -> None:
        self._acceptance = config.acceptance
        self._copies = has_head and config.profile.copy and config.depth is None and config.acceptance is None
        self._forces = has_head and config.acceptance is None
        self._fixed = config.depth is not None
        self._head = _policy(config.depth, has_head, config.tuned)
        # steps with a grammar have costs and acceptance of their own
        self._masked = _policy(config.depth, has_head, None)
        self._copied = CostAwareDepth(COPIED_MOST, COPIED_FIRST)

    def admit(self, row: Row) -> None:
        """Give a row that begins to decode what it may draft from beside the head."""
        if self._copies and row.request.depth is None:
            row.drafter = CopyDrafter(row.request.prompt)

    def waits(self, rows: Sequence[Row]) -> bool:
        """Whether the next plan depends on the tokens of the step in flight."""
        return any(row.grammar is not None or (row.drafter is not None and row.drafter.ready) for row in rows)

    def plan(self, rows: Sequence[Row]) -> StepPlan:
        """For a step of these rows, all of whose tokens so far are known where `waits` says so."""
        depth = self._policy(rows).choose(len(rows))
        depths = [depth if row.request.depth is None else row.request.depth for row in rows]
        drafted = [self._given(row, most, len(rows)) for row, most in zip(rows, depths, strict=True)]
        given = [tokens for _, tokens in drafted]
        if not any(given):
            return StepPlan(depths, acceptance=self._acceptance)
        limits = [len(tokens) or most for tokens, most in zip(given, depths, strict=True)]
        return StepPlan(limits, given, [source for source, _ in drafted], acceptance=self._acceptance)

    def _given(self, row: Row, depth: int, rows: int) -> tuple[DraftSource, list[int]]:
        """What the host drafts for a row, where it has something."""
        if self._forces and row.grammar is not None:
            chosen = self._fixed or row.request.depth is not None
            forced = row.grammar.forced()[: depth if chosen else FORCED_MOST]
            if forced:
                return "grammar", forced
        if row.drafter is not None and row.drafter.ready:
            return "copy", row.drafter.propose(max(1, self._copied.choose(rows)))
        return "mtp", []

    def _policy(self, rows: Sequence[Row]) -> DepthPolicy:
        """Who chooses the depth of the head's drafts."""
        return self._masked if any(row.grammar is not None for row in rows) else self._head

    def observe(
        self, plan: StepPlan, rows: Sequence[Row], outcomes: Sequence[RowOutcome], seconds: float | None
    ) -> None:
        """Take in what a step gave whose rows all were of the policy's own choosing; its wall seconds, None where no
        clean time of it alone is known."""
        sources = {outcome.source for outcome in outcomes}
        if len(sources) == 1 and sources != {"grammar"} and all(row.request.depth is None for row in rows):
            policy = self._copied if sources == {"copy"} else self._policy(rows)
            policy.observe(len(rows), plan.depth, *_by_place(plan.depth, outcomes), seconds)


def _policy(depth: int | None, has_head: bool, tuned: Tuned | None) -> DepthPolicy:
    if not has_head:
        return FixedDepth(0)
    if depth is not None:
        return FixedDepth(depth)
    if tuned is None:
        return CostAwareDepth(MAX_DEPTH, START)
    return CostAwareDepth(
        MAX_DEPTH, tuned.best_depth, tuned.seconds_by_depth, tuned.acceptance_by_place, tuned.excluded
    )


def _by_place(depth: int, outcomes: Sequence[RowOutcome]) -> tuple[list[int], list[int]]:
    """For each draft's place, rows in which it was judged, and in which it was accepted."""
    judged = [sum(place < outcome.judged for outcome in outcomes) for place in range(depth)]
    accepted = [sum(place < outcome.accepted for outcome in outcomes) for place in range(depth)]
    return judged, accepted
