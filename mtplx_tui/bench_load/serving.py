"""What the server adds to its engine: time before the first token, and processor time for what it streams.

Server and engine run in this process, as in `serve`; the client is a process of its own. The engine says of each
request when its first token was there, counted from the moment at which the server submitted it, so both times are of
one and the same request. What streaming costs is measured over an engine that only keeps a pace.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.bench.receipts import PromptSet, Receipts, receipts
from engine.bench.report import Report, Table
from engine.bench.stats import Spread
from engine.config import EngineConfig
from engine.events import Event, FinishEvent
from engine.handle import EngineHandle
from engine.prompts import stories
from mtplx_tui.bench_load.asked import run_clients
from mtplx_tui.bench_load.paced import Paced
from mtplx_tui.bench_load.servers import Served
from mtplx_tui.commands.common import CommandFailedError

if TYPE_CHECKING:
    from server.run import ServerThread

REQUESTS = 8
FIRST = 8  # tokens of an answer of which the first is timed
SECONDS = 5.0  # of a stream
REPEATS = 5
RATE = 200.0  # tokens a second of a stream
MS = 1000.0


@dataclass(frozen=True, slots=True)
class ServeResult:
    """What `bench serve --json` prints.

    Attributes:
        client_ttft_ms: from sending a request to its first frame with text. engine_ttft_ms: from its submission to its
            first token. added_ms: the one less the other, within each request. All over requests, one client.
        stream_percent: of a core, the processor time of the server's thread while it sends one stream of RATE tokens a
            second, each a step of its own; the request itself is in it. Over repeats.
        stream_frames_s: frames that the stream had in a second.
    """

    model: str
    client_ttft_ms: Spread
    engine_ttft_ms: Spread
    added_ms: Spread
    stream_percent: Spread
    stream_frames_s: Spread
    receipts: Receipts


class _Ear:
    """The ends that the engine tells, in order; one request runs at a time."""

    def __init__(self) -> None:
        self.ends: list[FinishEvent] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, FinishEvent):
            self.ends.append(event)


def bench_serve(
    model: str | None,
    progress: Callable[[str], None] = lambda line: None,
    *,
    requests: int = REQUESTS,
    seconds: float = SECONDS,
    repeats: int = REPEATS,
) -> ServeResult:
    """By turns, `requests` short answers of the engine's and a stream of `seconds` at RATE, `repeats` times.

    Raises:
        CommandFailedError: an answer failed, or the client's process did. EngineError: the model can not be loaded.
    """
    from engine.engine import ThreadEngine

    config = EngineConfig(model)
    seed = secrets.randbelow(2**32)
    prompts = stories((repeats + 1) * requests, seed)
    ear = _Ear()
    first: list[tuple[float, float]] = []
    streams: list[tuple[float, float]] = []
    progress("loading the model")
    with closing(ThreadEngine(config, ear)) as engine:
        info = engine.wait_ready()
        settings = {"requests": requests, "seconds": seconds, "repeats": repeats, "temperature": 0, "rate": RATE}
        kept = receipts("serve", info, config, settings, [PromptSet.of("stories", prompts)], seed)
        with _served(engine) as real, _served(Paced(engine, RATE)) as paced:
            _first_tokens(real, info.name, prompts[:requests], ear)
            for repeat in range(repeats):
                batch = prompts[(repeat + 1) * requests :][:requests]
                first += _first_tokens(real, info.name, batch, ear)
                streams.append(_stream(paced, info.name, batch[0], seconds))
                progress(f"repeat {repeat + 1} of {repeats}")
    return ServeResult(
        info.name,
        Spread.of([client for client, _ in first]),
        Spread.of([own for _, own in first]),
        Spread.of([client - own for client, own in first]),
        Spread.of([cpu for cpu, _ in streams]),
        Spread.of([frames for _, frames in streams]),
        kept,
    )


@contextmanager
def _served(engine: EngineHandle) -> Iterator["ServerThread"]:
    from server.run import ServerThread

    server = ServerThread(engine, port=0)
    server.start()
    try:
        yield server
    finally:
        server.stop(1.0)


def _first_tokens(server: "ServerThread", model: str, prompts: Sequence[str], ear: _Ear) -> list[tuple[float, float]]:
    """(client's, engine's) times to the first token of each, ms."""
    ear.ends.clear()
    answers = _asked(server, model, prompts, FIRST)
    return [
        (MS * (answer["frames"][0][0] - answer["sent"]), MS * (end.stats.ttft_s or 0.0))
        for answer, end in zip(answers, ear.ends, strict=True)
    ]


def _stream(server: "ServerThread", model: str, prompt: str, seconds: float) -> tuple[float, float]:
    """(processor time of the server's thread in percent of a stream's, frames a second)."""
    before = server.processor_s()
    (answer,) = _asked(server, model, [prompt], round(RATE * seconds))
    lasted = answer["ended"] - answer["sent"]
    return 100 * (server.processor_s() - before) / lasted, len(answer["frames"]) / lasted


def _asked(server: "ServerThread", model: str, prompts: Sequence[str], tokens: int) -> list[dict[str, Any]]:
    assert server.address is not None
    answers = run_clients(Served("", server.address, model), [prompts], tokens, {"ignore_eos": True})
    for answer in answers:
        if answer["error"] is not None or not answer["frames"]:
            raise CommandFailedError(f"An answer failed: {answer['error'] or 'it had no text'}")
    return answers


def serve_report(result: ServeResult) -> Report:
    """For people: what the server adds before the first token, and what streaming takes of a core."""
    first = Table(
        "ttft",
        "Time to the first token, one client, ms",
        ("client", "engine", "added by the server"),
        ((result.client_ttft_ms, result.engine_ttft_ms, result.added_ms),),
    )
    stream = Table(
        "stream",
        f"One stream of {RATE:.0f} tokens a second",
        ("server's thread, % of a core", "frames a second"),
        ((result.stream_percent, result.stream_frames_s),),
    )
    notes = ("Added: within each request.", "The stream comes from an engine that only keeps the pace.")
    return Report(f"What serving {result.model} adds", result.receipts, (first, stream), notes)
