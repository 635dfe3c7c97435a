"""All benchmarks of one model, one after the other, as one result."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.bench.context import ContextResult, bench_context, context_report
from engine.bench.receipts import Receipts
from engine.bench.report import Report
from engine.bench.speed import SpeedResult, bench_speed, speed_report
from engine.bench.step import StepResult, bench_step, step_report
from engine.config import EngineConfig
from engine.prompts import KINDS
from mtplx_tui.bench_load.measure import LoadResult, bench_load, load_report


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What `bench suite --json` prints: each part is what its own command prints."""

    model: str
    speed: SpeedResult
    step: StepResult
    context: ContextResult
    load: LoadResult
    receipts: Receipts


def bench_suite(model: str | None, progress: Callable[[str], None], *, quick: bool = False) -> SuiteResult:
    """Speed, step, context and load. `quick` takes the fewest and smallest runs, whose figures are not worth quoting.

    Raises what its parts raise.
    """
    config = EngineConfig(model)

    def saying(part: str) -> Callable[[str], None]:
        return lambda line: progress(f"{part}: {line}")

    if quick:
        kinds = {kind: prompts[:1] for kind, prompts in KINDS.items()}
        speed = bench_speed(config, saying("speed"), kinds=kinds, depths=(0, 3, None), repeats=1, tokens=32)
        step = bench_step(config, saying("step"), depths=(0, 3), steps=8)
        context = bench_context(config, saying("context"), lengths=(256,), repeats=1)
        load = bench_load(model, saying("load"), clients=(1, 4), requests=1, tokens=32, repeats=1)
    else:
        speed = bench_speed(config, saying("speed"))
        step = bench_step(config, saying("step"))
        context = bench_context(config, saying("context"))
        load = bench_load(model, saying("load"))
    parts = (speed.receipts, step.receipts, context.receipts, load.receipts)
    kept = replace(
        speed.receipts,
        benchmark="suite",
        settings={part.benchmark: part.settings for part in parts},
        prompts=tuple(prompts for part in parts for prompts in part.prompts),
    )
    return SuiteResult(speed.model, speed, step, context, load, kept)


def suite_report(result: SuiteResult) -> Report:
    """The tables of all parts, each under its part's name."""
    parts = {
        "speed": speed_report(result.speed),
        "step": step_report(result.step),
        "context": context_report(result.context),
        "load": load_report(result.load),
    }
    tables = tuple(
        replace(table, name=f"{part}-{table.name}", title=f"{part.capitalize()}: {table.title}")
        for part, report in parts.items()
        for table in report.tables
    )
    notes = tuple(f"{part.capitalize()}: {note}" for part, report in parts.items() for note in report.notes)
    return Report(f"Benchmarks of {result.model}", result.receipts, tables, notes)
