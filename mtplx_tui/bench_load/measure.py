"""What the clients saw, in figures: time to the first token, gaps between tokens, tokens a second, what was lost."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.bench.receipts import PromptSet, Receipts, receipts
from engine.bench.report import Report, Table
from engine.bench.runs import OURS, PEER
from engine.bench.stats import Spread, percentile
from engine.config import EngineConfig
from engine.prompts import stories
from mtplx_tui.bench_load.asked import run_clients
from mtplx_tui.bench_load.servers import Served, ours, peer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CLIENTS = (1, 8, 32)
REQUESTS = 2
MAX_TOKENS = 128
REPEATS = 3
MS = 1000.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The middle of many times, and what 19 of 20 stay below; milliseconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LoadCost:
    """One server at one number of clients, all repeats together.

    Attributes:
        tok_s: tokens of all answers over the time from the first request to the last end, in each repeat.
        ttft_ms: from sending a request to its first frame with text, over requests.
        frame_gap_ms: between two such frames of an answer, over frames: the pauses that a reader sees.
        inter_token_ms: the same gap shared out over the frame's tokens, over tokens.
        requests, failed: sent, and ended without a whole answer. errors: each kind of failure once.
    """

    server: str
    clients: int
    tok_s: Spread
    ttft_ms: Percentiles | None
    frame_gap_ms: Percentiles | None
    inter_token_ms: Percentiles | None
    requests: int
    failed: int
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadRatios:
    """Our server at one number of clients: against mlx-lm's, and against itself with one client.

    Attributes:
        tok_s_vs_peer: within repeats; None where the peer gave nothing.
        inter_token_p95_vs_solo, frame_gap_p95_vs_solo: None where one client alone was not measured.
    """

    clients: int
    tok_s_vs_peer: Spread | None
    inter_token_p95_vs_solo: float | None
    frame_gap_p95_vs_solo: float | None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What `bench load --json` prints."""

    model: str
    costs: tuple[LoadCost, ...]
    ratios: tuple[LoadRatios, ...]
    receipts: Receipts


@dataclass(frozen=True, slots=True)
class _Round:
    server: str
    clients: int
    answers: list[dict[str, Any]]
    tokens: list[list[int]]  # of each answer, of each frame


def bench_load(
    model: str | None,
    progress: Callable[[str], None] = lambda line: None,
    *,
    clients: Sequence[int] = CLIENTS,
    requests: int = REQUESTS,
    tokens: int = MAX_TOKENS,
    repeats: int = REPEATS,
) -> LoadResult:
    """`requests` streamed, greedy answers for each client, from ours and from mlx-lm's server by turns.

    Both servers run all the time, and one of them has nothing to do. No prompt is sent twice to one server, nor was in
    an earlier run, since our prompt cache outlives the server.

    Raises:
        CommandFailedError: a server did not start, or the clients' process ended without a result.
        EngineError: the model is not here.
    """
    from tokenizers import Tokenizer

    from engine import device
    from engine.models.locate import locate

    device.prepare()
    files = locate(model)
    tokenizer = Tokenizer.from_file(str(files.path / "tokenizer.json"))
    seed = secrets.randbelow(2**32)
    prompts = stories((repeats * sum(clients) + max(clients)) * requests, seed)
    settings = {
        "clients": list(clients), "requests_a_client": requests, "max_tokens": tokens, "repeats": repeats,
        "temperature": 0,
    }  # fmt: skip
    named = {"name": files.name}
    kept = receipts("load", named, EngineConfig(model), settings, [PromptSet.of("stories", prompts)], seed)
    rounds: list[_Round] = []
    with ExitStack() as stack:
        progress("starting both servers")
        servers = [stack.enter_context(ours(model)), stack.enter_context(peer(files.path))]

        def ask(served: Served, batch: Sequence[str], count: int) -> _Round:
            shares = [list(batch[number::count]) for number in range(count)]
            return _counted(tokenizer, served.name, count, run_clients(served, shares, tokens))

        warm, rest = prompts[: max(clients) * requests], prompts[max(clients) * requests :]
        for served in servers:
            ask(served, warm[: min(8, max(clients))], min(8, max(clients)))
        for repeat in range(repeats):
            for count in clients:
                batch, rest = rest[: count * requests], rest[count * requests :]
                for served in servers if repeat % 2 == 0 else servers[::-1]:
                    rounds.append(ask(served, batch, count))
            progress(f"repeat {repeat + 1} of {repeats}")
    costs = tuple(
        _cost([r for r in rounds if (r.server, r.clients) == (name, count)])
        for count in clients
        for name in (OURS, PEER)
    )
    return LoadResult(files.name, costs, _ratios(rounds, costs), kept)


def _counted(tokenizer: "Tokenizer", server: str, clients: int, answers: list[dict[str, Any]]) -> _Round:
    """Count tokens by the model's own tokenizer, for both servers alike: an event stream does not say them."""
    counts = [
        [max(1, len(tokenizer.encode(text, add_special_tokens=False).ids)) for _, text in answer["frames"]]
        for answer in answers
    ]
    return _Round(server, clients, answers, counts)


def _tok_s(each: _Round) -> float:
    begun = min(answer["sent"] for answer in each.answers)
    ended = max(answer["ended"] for answer in each.answers)
    return float(sum(map(sum, each.tokens)) / (ended - begun))


def _cost(rounds: Sequence[_Round]) -> LoadCost:
    answers = [answer for each in rounds for answer in each.answers]
    counts = [frames for each in rounds for frames in each.tokens]
    gaps: list[float] = []
    by_token: list[float] = []
    for answer, frames in zip(answers, counts, strict=True):
        times = [at for at, _ in answer["frames"]]
        for before, at, tokens in zip(times, times[1:], frames[1:], strict=False):
            gaps.append(MS * (at - before))
            by_token += [MS * (at - before) / tokens] * tokens
    first = [MS * (answer["frames"][0][0] - answer["sent"]) for answer in answers if answer["frames"]]
    errors = [answer["error"] for answer in answers if answer["error"] is not None]
    return LoadCost(
        rounds[0].server,
        rounds[0].clients,
        Spread.of([_tok_s(each) for each in rounds]),
        _percentiles(first),
        _percentiles(gaps),
        _percentiles(by_token),
        len(answers),
        len(errors),
        tuple(dict.fromkeys(errors)),
    )


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    return Percentiles(percentile(values, 0.5), percentile(values, 0.95)) if values else None


def _ratios(rounds: Sequence[_Round], costs: Sequence[LoadCost]) -> tuple[LoadRatios, ...]:
    own = {cost.clients: cost for cost in costs if cost.server == OURS}
    solo = own.get(1)

    def rates(server: str, clients: int) -> list[float]:
        return [_tok_s(each) for each in rounds if (each.server, each.clients) == (server, clients)]

    def against_peer(clients: int) -> Spread | None:
        others = rates(PEER, clients)
        return Spread.of_ratios(rates(OURS, clients), others) if all(others) else None

    def over(one: Percentiles | None, other: Percentiles | None) -> float | None:
        return None if one is None or other is None else one.p95 / other.p95

    return tuple(
        LoadRatios(
            count,
            against_peer(count),
            over(cost.inter_token_ms, solo.inter_token_ms) if solo is not None else None,
            over(cost.frame_gap_ms, solo.frame_gap_ms) if solo is not None else None,
        )
        for count, cost in own.items()
    )


def load_report(result: LoadResult) -> Report:
    """For people: both servers at each number of clients, and what it comes to."""
    rows = tuple(
        (
            cost.clients,
            cost.server,
            cost.tok_s,
            *_both(cost.ttft_ms),
            *_both(cost.inter_token_ms),
            *_both(cost.frame_gap_ms),
            cost.requests,
            cost.failed,
        )
        for cost in result.costs
    )
    columns = (
        "clients", "server", "tok/s", "TTFT p50", "p95", "token p50", "token p95", "frame p50", "frame p95", "requests",
        "failed",
    )  # fmt: skip
    ratios = tuple(
        (each.clients, each.tok_s_vs_peer, each.inter_token_p95_vs_solo, each.frame_gap_p95_vs_solo)
        for each in result.ratios
    )
    ratio_columns = ("clients", "tok/s / mlx-lm", "token p95 / one client", "frame p95 / one client")
    notes = [f"{cost.server}, {cost.clients} clients: {error}" for cost in result.costs for error in cost.errors]
    return Report(
        f"Load on servers of {result.model}",
        result.receipts,
        (
            Table("servers", "Servers by number of clients, times in ms", columns, rows),
            Table("ratios", "Our server", ratio_columns, ratios),
        ),
        (*notes, "Token: the gap before a frame shared out over its tokens. Frame: the gap itself."),
    )


def _both(percentiles: Percentiles | None) -> tuple[float | None, float | None]:
    return (None, None) if percentiles is None else (percentiles.p50, percentiles.p95)
