"""Reading long prompts: prefill, time to the first token, decoding behind it and memory, against mlx-lm; and how soon a
second turn starts behind one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.bench.receipts import PromptSet, Receipts, receipts
from engine.bench.report import Report, Table
from engine.bench.runs import OURS, PEER, Timed, rate, rendered, run, run_peer
from engine.bench.stats import Spread
from engine.bench.turns import SecondTurn, room, second_turn
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.errors import BadRequestError
from engine.prompts import passage

if TYPE_CHECKING:
    from engine.bench.peer import Peer
    from engine.chat import ChatFormat

LENGTHS = (512, 2048, 8192, 16_384)
LONGEST_TURN = 4096  # of a first turn, whatever lengths are asked for
DECODED = 32
REPEATS = 3
PEER_S = 120.0  # what one run of the peer may take
LENGTH_S = 90.0  # what the repeats of one length should take together
QUESTION = "Tell me a short story about a fox."
TOKENS_A_SENTENCE = 8  # at least
TURN_TOKENS = 3  # that open a turn
SHORTEST = 64
SEED = 1


@dataclass(frozen=True, slots=True)
class ContextCost:
    """One contender at one prompt length.

    Attributes:
        tokens: the prompt's. decoded: tokens made behind it.
        prefill_tok_s: prompt tokens over the seconds from the request to the first output, the first step included.
        ttft_s: those seconds. decode_tok_s: after the first output, at this depth of context.
        memory_bytes: the most that MLX held above what it held before, so without the weights.
        missing: why there are no figures, where there are none.
    """

    engine: str
    tokens: int
    decoded: int
    prefill_tok_s: Spread | None
    ttft_s: Spread | None
    decode_tok_s: Spread | None
    memory_bytes: int | None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class ContextResult:
    """What `bench context --json` prints.

    Attributes:
        prefill_vs_peer: our prefill over mlx-lm's within repeats, by prompt length; None where the peer has none.
        second_turn: behind a first one of the longest length, up to 4,096 tokens; the only part with caches.
    """

    model: str
    costs: tuple[ContextCost, ...]
    prefill_vs_peer: dict[int, Spread | None]
    second_turn: SecondTurn
    receipts: Receipts


@dataclass(frozen=True, slots=True)
class _Measured:
    ours: list[Timed]
    peer: list[Timed]
    memory: tuple[int, int]
    missing: str | None


def bench_context(
    config: EngineConfig,
    progress: Callable[[str], None] = lambda line: None,
    *,
    lengths: Sequence[int] = LENGTHS,
    decoded: int = DECODED,
    repeats: int = REPEATS,
) -> ContextResult:
    """Prompts of each length, read by ours and by mlx-lm in turns, with no cache between the runs; then a second turn.

    A length that does not leave room for `decoded` tokens in the model's context is shortened until it does. Raises
    what loading raises, and BadRequestError for a length that is too short to be measured.
    """
    if min(lengths) < SHORTEST:
        raise BadRequestError(f"A length is {min(lengths)}; it must be at least {SHORTEST} tokens.", "lengths")
    progress("loading the model")
    ours = DirectEngine(replace(config, cache_bytes=0))
    from engine.bench.peer import Peer  # MLX may only be imported once the device is prepared

    info, chat = ours.loaded.info, ours.loaded.chat
    peer = Peer(info)
    fitting = sorted({min(length, info.context - decoded) for length in lengths})
    text = passage(fitting[-1] // TOKENS_A_SENTENCE + 1, SEED)
    settings = {"lengths": fitting, "decoded": decoded, "repeats_at_most": repeats, "peer_seconds_at_most": PEER_S}
    kept = receipts("context", info, config, settings, [PromptSet.of("context", [text, QUESTION])], SEED)
    warm = _prompt(chat, text, SHORTEST)
    run(ours, warm, 8, None, endless=True)
    slow = run_peer(peer, warm, 8, chat.eos_ids).first_s / SHORTEST  # seconds a token, until the next length tells
    costs: list[ContextCost] = []
    ratios: dict[int, Spread | None] = {}
    for length in fitting:
        progress(f"{length} tokens")
        measured = _measure(ours, peer, _prompt(chat, text, length), decoded, repeats, slow * length)
        costs.append(_cost(OURS, length, decoded, measured.ours, measured.memory[0], None))
        costs.append(_cost(PEER, length, decoded, measured.peer, measured.memory[1], measured.missing))
        ratios[length] = None
        if measured.peer:
            slow = measured.peer[-1].first_s / length
            ratios[length] = Spread.of_ratios(
                [length / each.first_s for each in measured.ours], [length / each.first_s for each in measured.peer]
            )
    first = _prompt(chat, text, min(LONGEST_TURN, fitting[-1], room(ours.loaded, decoded)))
    progress(f"the second turn behind {len(first)} tokens")
    turn = second_turn(ours.loaded, config, first, decoded, repeats)
    return ContextResult(info.name, tuple(costs), ratios, turn, kept)


def _prompt(chat: "ChatFormat", text: str, length: int) -> tuple[int, ...]:
    """A question behind as much of the text as makes `length` tokens, in the model's chat format."""
    whole = rendered(chat, (("user", f"{text} {QUESTION}"),))
    return whole[:TURN_TOKENS] + whole[TURN_TOKENS - length :]


def _measure(
    ours: DirectEngine, peer: "Peer", prompt: tuple[int, ...], decoded: int, repeats: int, peer_s: float
) -> _Measured:
    """Turns of both; of the peer only where its run is expected to fit, `peer_s` being what it is expected to take."""
    asked = ours.loaded.chat.eos_ids
    missing = None
    if peer_s > PEER_S:
        missing = f"a run would take about {peer_s:.0f} s, and at most {PEER_S:.0f} s are spent on one"
    of_ours: list[Timed] = []
    of_peer: list[Timed] = []
    memory = [0, 0]
    spent = 0.0
    while len(of_ours) < repeats and (not of_ours or spent * (len(of_ours) + 1) / len(of_ours) < LENGTH_S):
        timed, memory[0] = _with_memory(lambda: run(ours, prompt, decoded, None, endless=True))
        of_ours.append(timed)
        spent += timed.first_s + timed.seconds
        if missing is None:
            timed, memory[1] = _with_memory(lambda: run_peer(peer, prompt, decoded, asked))
            of_peer.append(timed)
            spent += timed.first_s + timed.seconds
    return _Measured(of_ours, of_peer, (memory[0], memory[1]), missing)


def _with_memory(work: Callable[[], Timed]) -> tuple[Timed, int]:
    """What `work` gives, and the most bytes that MLX held meanwhile above what it held before."""
    import mlx.core as mx

    before = mx.get_active_memory()
    mx.reset_peak_memory()
    timed = work()
    return timed, mx.get_peak_memory() - before


def _cost(
    engine: str, length: int, decoded: int, runs: Sequence[Timed], memory: int, missing: str | None
) -> ContextCost:
    if not runs:
        return ContextCost(engine, length, decoded, None, None, None, None, missing)
    return ContextCost(
        engine,
        length,
        decoded,
        Spread.of([length / each.first_s for each in runs]),
        Spread.of([each.first_s for each in runs]),
        Spread.of([rate([each]) for each in runs]) if all(each.seconds for each in runs) else None,
        memory,
    )


def context_report(result: ContextResult) -> Report:
    """For people: both contenders at each length, and the ratio of their prefills."""
    rows = tuple(
        (
            cost.tokens,
            cost.engine,
            cost.prefill_tok_s,
            cost.ttft_s,
            cost.decode_tok_s,
            None if cost.memory_bytes is None else cost.memory_bytes / 1e6,
            result.prefill_vs_peer[cost.tokens] if cost.engine == OURS else "",
        )
        for cost in result.costs
    )
    columns = ("tokens", "engine", "prefill tok/s", "TTFT s", "decode tok/s", "memory MB", "prefill / mlx-lm")
    notes = [f"mlx-lm at {cost.tokens} tokens: n/a, {cost.missing}." for cost in result.costs if cost.missing]
    notes.append(f"Second turn: {'the same text' if result.second_turn.same_text else 'DIFFERENT TEXTS'} in all three.")
    tables = (Table("context", "Prompts by length, read into empty caches", columns, rows), _turn(result.second_turn))
    return Report(f"Context of {result.model}", result.receipts, tables, tuple(notes))


def _turn(turn: SecondTurn) -> Table:
    return Table(
        "turn",
        f"The second turn of a conversation, {turn.prompt} tokens behind a first prompt of {turn.first}",
        ("cached", "tokens reused", "TTFT s", "TTFT / cold"),
        (
            ("nothing", 0, turn.cold_s, ""),
            ("in memory", turn.cached_memory, turn.memory_s, turn.memory_vs_cold),
            ("on disk, after a restart", turn.cached_disk, turn.disk_s, turn.disk_vs_cold),
        ),
    )
