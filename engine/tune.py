"""Which depth is fastest for a model on this machine: each of them and plain decoding, in turns, in a fresh process."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median

from engine.bench.runs import GREEDY
from engine.bench.sizing import LEAST_TOKENS, fitting
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.events import Event, FinishEvent, StepEvent, TokenEvent
from engine.handle import EngineHandle
from engine.process import ProcessEngine
from engine.prompts import PROMPTS
from engine.request import MAX_DEPTH, Request
from engine.tuned import DepthRow, Range, Tuning
from engine.tuned_files import fingerprint, versions

ROUND_S = 30.0  # what a round of all depths may take: a slow model's answers are cut so that it fits
MOST_TOKENS, WARM_TOKENS = 128, 8
ACCEPTANCE_FLOOR = 0.1
"""A depth that wins although hardly any of its drafts holds was not made faster by them: something else happened."""

Progress = Callable[[str], None]


def tune(config: EngineConfig, progress: Progress = lambda line: None) -> Tuning:
    """Measure in a child process and decide. Raises what loading raises, and EngineError where the process dies."""
    progress("loading the model")
    engine = ProcessEngine(
        replace(config, mode="mtp", depth=None, tuned=None, cache_bytes=0, cache_folder=None, acceptance=None)
    )
    try:
        info = engine.wait_ready()
        rows = measure(engine, progress)
    finally:
        engine.close()
    best, why = verdict(rows)
    return Tuning(
        model=info.name,
        fingerprint=fingerprint(Path(info.path)),
        device=info.device,
        versions=versions(),
        profile=config.profile.name,
        kv_bits=config.kv_bits,
        measured_at=int(time.time()),
        rows=rows,
        best_depth=best,
        saved=best > 0,
        why=why,
    )


def measure(
    engine: EngineHandle,
    progress: Progress,
    prompts: Sequence[str] = PROMPTS,
    size: tuple[int, int] | None = None,
) -> tuple[DepthRow, ...]:
    """Greedy answers to the prompts at depth 0, 1, 2, ..., to 8 or until two in a row are slower than the one before.

    A first round finds the deepest and warms up; it counts for the texts and not for the speeds. After it all depths
    take turns, so that whatever else the machine does meets each of them.

    Args:
        engine: loaded, in mode mtp, and idle.
        size: (tokens an answer may have, rounds); None fits them to the model's speed.
    """
    rendered = [engine.chat.render([{"role": "user", "content": prompt}]) for prompt in prompts]
    most, repeats = size or _size(engine, rendered)
    first: list[_Round] = []
    while len(first) <= MAX_DEPTH and not _falling([each.rate for each in first]):
        depth = len(first)
        _answer(engine, rendered[0], WARM_TOKENS, depth, _Round())  # builds what this depth needs
        first.append(_round(engine, rendered, most, depth))
        progress(f"depth {depth}: {first[-1].rate:.1f} tok/s")
    rounds: list[list[_Round]] = [[] for _ in first]
    for repeat in range(repeats):
        progress(f"round {repeat + 1} of {repeats}, depth 0 to {len(first) - 1}")
        for depth, timed in enumerate(rounds):
            timed.append(_round(engine, rendered, most, depth))
    return tuple(
        _row(depth, timed, all(each.ids == first[0].ids for each in (warm, *timed)))
        for depth, (warm, timed) in enumerate(zip(first, rounds, strict=True))
    )


def verdict(rows: Sequence[DepthRow]) -> tuple[int, str]:
    """(the depth worth keeping, or 0; why), from the rows of depth 0, 1, 2, ...

    A depth is kept if its median is above plain decoding's by more than the range of either one's repeats.
    """
    plain, *drafting = rows
    differing = [str(row.depth) for row in drafting if not row.identical_text]
    note = ""
    if differing:
        note = f"; left out, since its text differs from plain decoding's: depth {', '.join(differing)}"
    same = [row for row in drafting if row.identical_text]
    if not same:
        return 0, f"no depth gives plain decoding's text; nothing saved{note}"
    best = max(same, key=lambda row: row.tok_s.median)
    gain = best.tok_s.median - plain.tok_s.median
    spread = max(plain.tok_s.spread, best.tok_s.spread)
    ours, theirs = _speed(best.tok_s.median), _speed(plain.tok_s.median)
    if gain <= spread:
        how = "is faster" if gain < -spread else "is as fast"
        within = f", and repeats are up to {_speed(spread)} apart" if gain > 0 else ""
        why = f"plain decoding {how} here: {theirs} tok/s against {ours} at depth {best.depth}{within}; nothing saved"
        return 0, why + note
    held = best.acceptance or 0.0
    if held < ACCEPTANCE_FLOOR:
        return 0, (
            f"depth {best.depth} ran at {ours} tok/s and plain decoding at {theirs}, but only {held:.1%} of "
            f"its drafts held, so that drafting can not be the cause; nothing saved{note}"
        )
    times = best.tok_s.median / plain.tok_s.median
    return best.depth, f"depth {best.depth} makes {ours} tok/s, {times:.2f} times plain decoding's {theirs}{note}"


@dataclass(slots=True)
class _Round:
    """All prompts at one depth: tokens and seconds after each one's first output, and all its steps but the first."""

    tokens: int = 0
    seconds: float = 0.0
    made: int = 0
    steps: list[float] = field(default_factory=list)
    judged: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    ids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def _size(engine: EngineHandle, prompts: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """(tokens an answer may have, rounds), from how fast plain decoding is here."""
    _answer(engine, prompts[0], WARM_TOKENS, 0, _Round())
    plain = _Round()
    _answer(engine, prompts[0], LEAST_TOKENS, 0, plain)
    return fitting(ROUND_S * plain.rate / len(prompts) / (MAX_DEPTH + 1), MOST_TOKENS)


def _falling(rates: Sequence[float]) -> bool:
    return len(rates) > 2 and rates[-1] < rates[-2] < rates[-3]


def _round(engine: EngineHandle, prompts: Sequence[tuple[int, ...]], most: int, depth: int) -> _Round:
    timed = _Round()
    for prompt in prompts:
        _answer(engine, prompt, most, depth, timed)
    if not timed.steps:
        raise EngineError(
            f"The model ends its answers within one step at depth {depth}, which leaves nothing to time; use one that "
            "answers questions."
        )
    return timed


def _answer(engine: EngineHandle, prompt: tuple[int, ...], most: int, depth: int, into: _Round) -> None:
    events: SimpleQueue[Event] = SimpleQueue()
    engine.submit(Request(prompt, GREEDY, max_tokens=most, depth=depth, source="tune"), events.put)
    outputs: list[TokenEvent] = []
    steps: list[StepEvent] = []
    event: Event | None = None
    while not isinstance(event, FinishEvent):
        with suppress(Empty):  # a wait without end would keep Ctrl-C out on macOS
            event = events.get(timeout=0.5)
            if isinstance(event, TokenEvent):
                outputs.append(event)
            elif isinstance(event, StepEvent):
                steps.append(event)
    if event.error is not None:
        raise EngineError(f"A measured answer at depth {depth} failed: {event.error}")
    into.ids.append(tuple(token for output in outputs for token in output.ids))
    into.tokens += sum(len(output.ids) for output in outputs[1:])
    into.seconds += outputs[-1].at - outputs[0].at if outputs else 0.0
    into.made += sum(len(step.tokens) for step in steps[1:])
    into.steps += [step.seconds for step in steps[1:]]
    for place, judged in enumerate(event.stats.drafted_by_depth):
        into.judged[place] += judged
        into.accepted[place] += event.stats.accepted_by_depth[place]


def _row(depth: int, rounds: Sequence[_Round], identical: bool) -> DepthRow:
    rates = [each.rate for each in rounds]
    steps = [seconds for each in rounds for seconds in each.steps]
    judged = [sum(each.judged[place] for each in rounds) for place in range(depth)]
    accepted = [sum(each.accepted[place] for each in rounds) for place in range(depth)]
    return DepthRow(
        depth=depth,
        tok_s=Range(round(median(rates), 2), round(min(rates), 2), round(max(rates), 2)),
        seconds_per_step=round(median(steps), 7),
        tokens_per_step=round(sum(each.made for each in rounds) / len(steps), 3),
        acceptance=round(sum(accepted) / sum(judged), 4) if sum(judged) else None,
        acceptance_by_place=tuple(round(a / j, 4) if j else 0.0 for a, j in zip(accepted, judged, strict=True)),
        identical_text=identical,
    )


def _speed(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}"
