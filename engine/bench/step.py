"""Where the time of a decode step goes, at every depth: in the engine's own loop, and stage by stage."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.bench.receipts import PromptSet, Receipts, receipts
from engine.bench.report import Cell, Report, Table
from engine.bench.runs import Timed, rendered, run
from engine.bench.stats import Spread
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.prompts import KINDS
from engine.times import StepTimes

if TYPE_CHECKING:
    from engine.bench.stages import StageTimes

DEPTHS = (0, 1, 2, 3, 4, 5, 6)
STEPS = 60
BLOCKS = 3  # loop and stages by turns, so that a slow minute of the machine meets both
EVALUATIONS = 5  # in a staged step; the real one has one
PROMPT = KINDS["prose"][1]
MS = 1000.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """One depth, in milliseconds a step. The first five are of the loop as it runs, the others of a step cut apart.

    Attributes:
        wall_ms: from one outcome to the next. build_ms: making the graph. dispatch_ms: handing it over. wait_ms: the
            host blocked on the outcome. deliver_ms: from the outcome to the last event.
        draft_ms, verify_ms, accept_ms, advance_ms, read_ms: a stage evaluated alone.
        busy_ms: the device's stages together, less what evaluating them apart costs.
        idle_share: 1 - busy / wall, 0 to 1: the estimated share of the wall time in which the device had nothing to do.
        tokens_per_step: of the loop.
    """

    depth: int
    wall_ms: Spread
    build_ms: Spread
    dispatch_ms: Spread
    wait_ms: Spread
    deliver_ms: Spread
    draft_ms: Spread
    verify_ms: Spread
    accept_ms: Spread
    advance_ms: Spread
    read_ms: Spread
    busy_ms: Spread
    idle_share: Spread
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What `bench step --json` prints; `evaluation_ms` is what one evaluation costs apart from its work."""

    model: str
    depths: tuple[StepCost, ...]
    evaluation_ms: float
    receipts: Receipts


@dataclass(frozen=True, slots=True)
class _Block:
    """One turn of both at one depth; `loop` and `stages` have at least one step each."""

    timed: Timed
    loop: "list[StepTimes]"
    stages: "list[StageTimes]"


def bench_step(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    *,
    depths: Sequence[int] = DEPTHS,
    steps: int = STEPS,
) -> StepResult:
    """Cost of a step of one greedy row at each depth, over about `steps` steps. Raises what loading raises."""
    progress("loading the model")
    seen: list[StepTimes] = []
    engine = DirectEngine(replace(config, cache_bytes=0), seen.append)
    from engine.bench.stages import StagedRow, evaluation_overhead  # MLX only after the device is prepared

    prompt = rendered(engine.loaded.chat, PROMPT)
    settings = {"steps": steps, "blocks": BLOCKS, "depths": list(depths), "rows": 1, "temperature": 0}
    kept = receipts("step", engine.loaded.info, config, settings, [PromptSet.of("step", [PROMPT])])
    overhead = evaluation_overhead()
    room = engine.loaded.info.context - len(prompt) - 1

    def block(depth: int, count: int) -> _Block:
        staged = StagedRow(engine.loaded, prompt, depth, config.acceptance)
        seen.clear()
        timed = run(engine, prompt, min((count + 2) * (depth + 1), room), depth, endless=True)
        loop = [times for times in seen if times.depth == depth]
        return _Block(timed, loop, [staged.step() for _ in range(min(count, room // (depth + 1)))])

    costs = []
    for depth in depths:
        progress(f"depth {depth}")
        block(depth, 2)  # compiles
        costs.append(_cost(depth, [block(depth, max(1, steps // BLOCKS)) for _ in range(BLOCKS)], overhead))
    return StepResult(engine.loaded.info.name, tuple(costs), overhead * MS, kept)


def _cost(depth: int, blocks: Sequence[_Block], overhead: float) -> StepCost:
    def of_loop(name: str) -> Spread:
        return Spread.of([MS * getattr(times, name) for block in blocks for times in block.loop])

    def of_stages(name: str) -> Spread:
        return Spread.of([MS * getattr(times, name) for block in blocks for times in block.stages])

    busy = [
        max(0.0, statistics.median(times.device for times in block.stages) - EVALUATIONS * overhead) for block in blocks
    ]
    walls = [statistics.median(times.wall for times in block.loop) for block in blocks]
    return StepCost(
        depth=depth,
        **{f"{name}_ms": of_loop(name) for name in ("wall", "build", "dispatch", "wait", "deliver")},
        **{f"{name}_ms": of_stages(name) for name in ("draft", "verify", "accept", "advance", "read")},
        busy_ms=Spread.of([MS * each for each in busy]),
        idle_share=Spread.of([max(0.0, 1.0 - each / wall) for each, wall in zip(busy, walls, strict=True)]),
        tokens_per_step=statistics.fmean(block.timed.tokens_per_step for block in blocks),
    )


def step_report(result: StepResult) -> Report:
    """For people: the loop and the stages, a row for each depth."""
    loop: tuple[tuple[Cell, ...], ...] = tuple(
        (
            cost.depth,
            cost.tokens_per_step,
            cost.wall_ms,
            *_medians(cost.build_ms, cost.dispatch_ms, cost.wait_ms, cost.deliver_ms),
        )
        for cost in result.depths
    )
    stages: tuple[tuple[Cell, ...], ...] = tuple(
        (
            cost.depth,
            *_medians(cost.draft_ms, cost.verify_ms, cost.accept_ms, cost.advance_ms, cost.read_ms),
            cost.busy_ms,
            cost.wall_ms.median,
            cost.idle_share,
        )
        for cost in result.depths
    )
    loop_columns = ("depth", "tok/step", "wall", "build", "dispatch", "wait", "deliver")
    stage_columns = ("depth", "draft", "verify", "accept", "advance", "read", "busy", "wall", "idle share")
    return Report(
        f"Cost of a step of {result.model}, one row",
        result.receipts,
        (
            Table("loop", "The loop as it runs, ms a step", loop_columns, loop),
            Table("stages", "A step cut apart, ms", stage_columns, stages),
        ),
        (
            "Build and dispatch are of the step behind the one that is awaited; where dispatch is long, it is the host "
            "waiting for the device.",
            "The idle share is an estimate: 1 - busy / wall.",
        ),
    )


def _medians(*spreads: Spread) -> list[float]:
    return [spread.median for spread in spreads]
