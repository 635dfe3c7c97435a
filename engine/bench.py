"""Decoding speed against mlx-lm's own generator: one process, same weights, same BLAS, runs interleaved."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.events import Event, TokenEvent
from engine.prompts import PROMPTS
from engine.request import Request, Sampling

if TYPE_CHECKING:
    from engine.peer import Peer

GREEDY = Sampling(temperature=0.0)
DEPTHS: tuple[int | None, ...] = (0, 1, 2, 3, 4, 5, 6, None)
REPEATS, REPEATS_SLOW = 5, 3
MAX_TOKENS, MIN_TOKENS = 256, 32
REPEAT_S = 60.0  # what one repeat may take: a slow model's answers are cut so that it fits
PEER = "mlx-lm"
OURS = "mtplx"


@dataclass(slots=True)
class Contender:
    """One engine at one depth. `rates` holds tokens a second of each repeat, over all prompts together."""

    engine: str
    depth: int | None
    rates: list[float] = field(default_factory=list)
    tokens_per_step: float = 1.0
    texts: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def mode(self) -> str:
        return "ar" if self.engine == PEER or self.depth == 0 else "mtp"

    def row(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "mode": self.mode,
            "depth": "auto" if self.depth is None else self.depth,
            "tokens_per_step": round(self.tokens_per_step, 3),
            "decode_tok_s": {
                "median": round(statistics.median(self.rates), 2),
                "min": round(min(self.rates), 2),
                "max": round(max(self.rates), 2),
            },
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """One prompt's run. `tokens` came in `seconds` after the first output; the end-of-turn token is in neither."""

    ids: tuple[int, ...]
    tokens: int
    seconds: float
    tokens_per_step: float


def bench_speed(config: EngineConfig, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Greedy decoding of the chat prompts to their end of turn; figures count tokens after the first output.

    Returns the JSON that `bench speed --json` prints. Ratios are medians of the ratios within each repeat.
    Raises what loading raises.
    """
    progress("loading the model")
    ours = DirectEngine(replace(config, cache_bytes=0))
    from engine.peer import Peer  # MLX may only be imported once the device is prepared

    peer = Peer(ours.loaded.info)
    chat = ours.loaded.chat
    prompts = [chat.render([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    contenders = [Contender(PEER, 0), *(Contender(OURS, depth) for depth in DEPTHS)]
    most, repeats = _size(ours, prompts[0], runs=len(prompts) * len(contenders))
    for repeat in range(repeats + 1):  # the first one warms up
        for contender in contenders:
            runs = [
                _run_peer(peer, prompt, most, chat.eos_ids)
                if contender.engine == PEER
                else _run(ours, prompt, most, contender.depth)
                for prompt in prompts
            ]
            if repeat:
                _add(contender, runs)
        progress(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    return _report(ours, contenders, most, repeats)


def _size(engine: DirectEngine, prompt: tuple[int, ...], runs: int) -> tuple[int, int]:
    """(tokens an answer may have, repeats), from how fast plain decoding is here."""
    _run(engine, prompt, 8, 0)  # the first run compiles
    run = _run(engine, prompt, MIN_TOKENS, 0)
    fitting = int(REPEAT_S * run.tokens / run.seconds / runs)
    return max(MIN_TOKENS, min(MAX_TOKENS, fitting)), REPEATS if fitting >= MIN_TOKENS else REPEATS_SLOW


def _run(engine: DirectEngine, prompt: tuple[int, ...], most: int, depth: int | None) -> Timed:
    outputs: list[TokenEvent] = []

    def take(event: Event) -> None:
        if isinstance(event, TokenEvent):
            outputs.append(event)

    request = Request(prompt, GREEDY, max_tokens=most, depth=depth, source="bench")
    answer = engine.run([request], take)[0]
    tokens = sum(len(event.ids) for event in outputs[1:])
    return Timed(answer.ids, tokens, outputs[-1].at - outputs[0].at, answer.stats.tokens_per_step)


def _run_peer(peer: "Peer", prompt: tuple[int, ...], most: int, eos_ids: frozenset[int]) -> Timed:
    ids, seconds = peer.run(prompt, most)
    if ids and ids[-1] in eos_ids:
        ids = ids[:-1]
    return Timed(tuple(ids), len(ids) - 1, seconds, 1.0)


def _add(contender: Contender, runs: Sequence[Timed]) -> None:
    contender.rates.append(sum(run.tokens for run in runs) / sum(run.seconds for run in runs))
    contender.texts = [run.ids for run in runs]
    contender.tokens_per_step = statistics.fmean(run.tokens_per_step for run in runs)


def _report(ours: DirectEngine, contenders: list[Contender], most: int, repeats: int) -> dict[str, Any]:
    from engine import device

    peer, plain, *drafting = contenders
    best = max(drafting, key=lambda contender: statistics.median(contender.rates))
    found = device.prepare()
    return {
        "model": ours.loaded.info.name,
        "device": str(found),
        "blas": str(found.blas) if found.blas else None,
        "measured_at": int(time.time()),
        "repeats": repeats,
        "max_tokens": most,
        "prompts": len(PROMPTS),
        "rows": [contender.row() for contender in contenders],
        "ratio_best_vs_peer": _ratio(best, peer),
        "ratio_best_vs_ar": _ratio(best, plain),
        "identical_text": all(contender.texts == peer.texts for contender in contenders),
    }


def _ratio(one: Contender, other: Contender) -> float:
    return round(statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True)), 3)
