"""Decoding speed against mlx-lm's own generator: one process, same weights, same BLAS, runs interleaved."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from engine import device
from engine.bench.receipts import PromptSet, Receipts, receipts
from engine.bench.report import Cell, Report, Table
from engine.bench.runs import OURS, PEER, Timed, rate, rendered, run, run_peer
from engine.bench.sizing import LEAST_TOKENS, fitting
from engine.bench.stats import Spread
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.prompts import KINDS, Conversation

DEPTHS: tuple[int | None, ...] = (0, 1, 2, 3, 4, 5, 6, None)
MAX_TOKENS = 160
REPEAT_S = 180.0  # what one repeat may take: a slow model's answers are cut so that it fits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine at one depth; None lets the engine choose at every step."""

    engine: str
    depth: int | None

    @property
    def mode(self) -> str:
        return "ar" if self.engine == PEER or self.depth == 0 else "mtp"

    @property
    def shown(self) -> int | Literal["auto"]:
        return "auto" if self.depth is None else self.depth


@dataclass(frozen=True, slots=True)
class Sample:
    """What one contender did with all prompts of a kind in one repeat."""

    contender: Contender
    kind: str
    repeat: int
    runs: tuple[Timed, ...]


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One contender's decode speed: tokens a second after the first output, over the repeats."""

    engine: str
    mode: str
    depth: int | Literal["auto"]
    tokens_per_step: float
    decode_tok_s: Spread


@dataclass(frozen=True, slots=True)
class KindSpeed:
    """One kind of prompt. Ratios are within repeats; `best` is the depth with the highest median, auto included.

    Attributes:
        tokens: of plain decoding's answers together.
    """

    prompts: int
    tokens: int
    rows: tuple[SpeedRow, ...]
    best: int | Literal["auto"]
    best_fixed: int
    auto_vs_best_fixed: Spread
    auto_vs_ar: Spread
    best_vs_ar: Spread
    best_vs_peer: Spread


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """What `bench speed --json` prints. `rows` and the ratios beside them are over all prompts of all kinds.

    Attributes:
        identical_text: whether every contender gave the peer's texts; None where drafts were accepted synthetically,
            so that the texts mean nothing. different: which did not.
    """

    model: str
    device: str
    blas: str | None
    measured_at: int
    repeats: int
    max_tokens: int
    prompts: int
    rows: tuple[SpeedRow, ...]
    ratio_best_vs_peer: float
    ratio_best_vs_ar: float
    identical_text: bool | None
    different: tuple[str, ...]
    kinds: Mapping[str, KindSpeed]
    receipts: Receipts


def bench_speed(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    *,
    kinds: Mapping[str, Sequence[Conversation]] = KINDS,
    depths: Sequence[int | None] = DEPTHS,
    repeats: int | None = None,
    tokens: int | None = None,
) -> SpeedResult:
    """Greedy decoding of each kind's prompts to their end of turn; figures count tokens after the first output.

    Contenders take turns within a kind, and who begins moves on, so that no one always follows the same neighbour. The
    first round warms up and is dropped; in it the automatic depth learns, and it goes on learning, as in a session.

    Args:
        depths: 0 first, and None, the automatic one, among the others.
        repeats, tokens: rounds that count, and tokens an answer may have; None fits them to the machine.
    Raises what loading raises.
    """
    progress("loading the model")
    ours = DirectEngine(replace(config, cache_bytes=0))
    from engine.bench.peer import Peer  # MLX may only be imported once the device is prepared

    peer = Peer(ours.loaded.info)
    chat = ours.loaded.chat
    prompts = {kind: [rendered(chat, each) for each in conversations] for kind, conversations in kinds.items()}
    contenders = [Contender(PEER, 0), *(Contender(OURS, depth) for depth in depths)]
    flat = [prompt for each in prompts.values() for prompt in each]
    fit, rounds = _size(ours, flat[0], runs=len(flat) * len(contenders))
    most, rounds = tokens or fit, repeats or rounds
    settings = {"repeats": rounds, "max_tokens": most, "temperature": 0, "seconds_a_repeat_at_most": REPEAT_S}
    kept = receipts(
        "speed", ours.loaded.info, config, settings, [PromptSet.of(kind, list(kinds[kind])) for kind in kinds]
    )

    def timed(contender: Contender, prompt: tuple[int, ...]) -> Timed:
        if contender.engine == PEER:
            return run_peer(peer, prompt, most, chat.eos_ids)
        return run(ours, prompt, most, contender.depth, endless=config.acceptance is not None)

    samples: list[Sample] = []
    for repeat in range(rounds + 1):
        for place, kind in enumerate(_rotated(list(kinds), repeat)):
            for contender in _rotated(contenders, repeat + place):
                runs = tuple(timed(contender, prompt) for prompt in prompts[kind])
                if repeat:
                    samples.append(Sample(contender, kind, repeat, runs))
        progress(f"repeat {repeat} of {rounds}" if repeat else "warmed up")
    return _result(ours, contenders, samples, kept)


def _rotated(items: Sequence[T], by: int) -> list[T]:
    by %= len(items)
    return [*items[by:], *items[:by]]


def _size(engine: DirectEngine, prompt: tuple[int, ...], runs: int) -> tuple[int, int]:
    """(tokens an answer may have, repeats), from how fast plain decoding is here."""
    run(engine, prompt, 8, 0)  # the first run compiles
    return fitting(REPEAT_S * rate([run(engine, prompt, LEAST_TOKENS, 0)]) / runs, MAX_TOKENS)


def _result(ours: DirectEngine, contenders: list[Contender], samples: list[Sample], kept: Receipts) -> SpeedResult:
    peer, plain, *drafting = contenders
    kinds = [each.name for each in kept.prompts]
    every = {contender: _rates(samples, contender) for contender in contenders}
    best = _best(drafting, every)
    found = device.prepare()
    synthetic = kept.engine["acceptance"] is not None
    different = () if synthetic else tuple(_different(samples, peer))
    return SpeedResult(
        model=ours.loaded.info.name,
        device=str(found),
        blas=str(found.blas) if found.blas else None,
        measured_at=int(time.time()),
        repeats=kept.settings["repeats"],
        max_tokens=kept.settings["max_tokens"],
        prompts=sum(each.count for each in kept.prompts),
        rows=_rows(samples, contenders),
        ratio_best_vs_peer=Spread.of_ratios(every[best], every[peer]).median,
        ratio_best_vs_ar=Spread.of_ratios(every[best], every[plain]).median,
        identical_text=None if synthetic else not different,
        different=different,
        kinds={kind: _kind([s for s in samples if s.kind == kind], contenders) for kind in kinds},
        receipts=kept,
    )


def _rates(samples: Sequence[Sample], contender: Contender) -> list[float]:
    """Tokens a second in each repeat, all its runs together."""
    repeats = sorted({sample.repeat for sample in samples})
    return [
        rate([run for s in samples if s.contender == contender and s.repeat == repeat for run in s.runs])
        for repeat in repeats
    ]


def _best(contenders: Sequence[Contender], rates: Mapping[Contender, Sequence[float]]) -> Contender:
    return max(contenders, key=lambda contender: statistics.median(rates[contender]))


def _rows(samples: Sequence[Sample], contenders: Sequence[Contender]) -> tuple[SpeedRow, ...]:
    return tuple(
        SpeedRow(
            contender.engine,
            contender.mode,
            contender.shown,
            statistics.fmean(run.tokens_per_step for s in samples if s.contender == contender for run in s.runs),
            Spread.of(_rates(samples, contender)),
        )
        for contender in contenders
    )


def _kind(samples: Sequence[Sample], contenders: Sequence[Contender]) -> KindSpeed:
    peer, plain, *drafting = contenders
    rates = {contender: _rates(samples, contender) for contender in contenders}
    auto = next(contender for contender in drafting if contender.depth is None)
    best = _best(drafting, rates)
    best_fixed = _best([plain, *(contender for contender in drafting if contender is not auto)], rates)
    answers = next(sample for sample in samples if sample.contender == plain).runs
    return KindSpeed(
        prompts=len(answers),
        tokens=sum(len(run.ids) for run in answers),
        rows=_rows(samples, contenders),
        best=best.shown,
        best_fixed=best_fixed.depth or 0,
        auto_vs_best_fixed=Spread.of_ratios(rates[auto], rates[best_fixed]),
        auto_vs_ar=Spread.of_ratios(rates[auto], rates[plain]),
        best_vs_ar=Spread.of_ratios(rates[best], rates[plain]),
        best_vs_peer=Spread.of_ratios(rates[best], rates[peer]),
    )


def _different(samples: Sequence[Sample], peer: Contender) -> list[str]:
    """Where a contender's text was not the peer's, in words, each place once."""
    texts = {(s.kind, s.repeat): [run.ids for run in s.runs] for s in samples if s.contender == peer}
    return list(
        dict.fromkeys(
            f"depth {s.contender.shown}, {s.kind} prompt {place + 1}"
            for s in samples
            for place, (run, text) in enumerate(zip(s.runs, texts[s.kind, s.repeat], strict=True))
            if run.ids != text
        )
    )


def speed_report(result: SpeedResult) -> Report:
    """For people: all prompts together, the rate of every depth by kind, and what it comes to."""
    columns = ("engine", "mode", "depth", "tok/step", "tok/s", "min to max")
    overall = tuple(
        (row.engine, row.mode, row.depth, row.tokens_per_step, row.decode_tok_s, _ends(row.decode_tok_s))
        for row in result.rows
    )
    by_depth: tuple[tuple[Cell, ...], ...] = tuple(
        (f"{row.engine} {row.depth if row.mode == 'mtp' else 'ar'}", *(kind.rows[at].decode_tok_s for kind in kinds))
        for kinds in [list(result.kinds.values())]
        for at, row in enumerate(result.rows)
    )
    ratios = tuple(
        (name, kind.prompts, kind.tokens, kind.best_fixed, kind.auto_vs_best_fixed, kind.auto_vs_ar, kind.best_vs_peer)
        for name, kind in result.kinds.items()
    )
    notes = [
        f"All prompts: best against mlx-lm {result.ratio_best_vs_peer:.2f}x, against plain decoding "
        f"{result.ratio_best_vs_ar:.2f}x."
    ]
    if result.identical_text is None:
        notes.append("Texts were not compared: with synthetic acceptance they mean nothing.")
    else:
        notes.append(f"Identical text: {'yes' if result.identical_text else 'NO: ' + '; '.join(result.different)}")
    tables = (
        Table("all", f"All prompts (repeats: {result.repeats})", columns, overall),
        Table("depths", "Tokens a second by kind of prompt", ("contender", *result.kinds), by_depth),
        Table(
            "kinds",
            "By kind of prompt",
            ("kind", "prompts", "tokens", "best D", "auto / best D", "auto / AR", "best / mlx-lm"),
            ratios,
        ),
    )
    return Report(f"Decode speed of {result.model}", result.receipts, tables, tuple(notes))


def _ends(spread: Spread) -> str:
    return f"{spread.min:.1f} to {spread.max:.1f}"
