"""`mtplx-tui bench`: what this machine does, in figures that carry their receipts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import EngineOptions, JsonOption, KvBitsOption, ModelOption, ProfileOption
from mtplx_tui.options import KvBits, ProfileName

if TYPE_CHECKING:
    from engine.bench.report import Report
    from engine.config import EngineConfig

bench = typer.Typer(help="Measure speed on this machine.", rich_markup_mode=None, no_args_is_help=True)

RandomOption = Annotated[
    str | None,
    typer.Option(
        "--random",
        metavar="SHAPE",
        help="Measure random weights of a shape instead of a model: tiny-24, 0.8b, 0.8b-4bit, 9b or 9b-4bit.",
    ),
]
AcceptOption = Annotated[
    float | None,
    typer.Option(
        "--accept",
        min=0.0,
        max=1.0,
        metavar="P",
        help="Accept each draft with this chance whatever it says: the cost is real, the text is not.",
    ),
]
SaveOption = Annotated[
    Path | None, typer.Option("--save", metavar="FOLDER", help="Also write the result there as JSON, Markdown and CSV.")
]
RepeatsOption = Annotated[int | None, typer.Option("--repeats", min=1, help="Rounds that count.")]
TokensOption = Annotated[int | None, typer.Option("--tokens", min=1, help="Tokens an answer may have.")]


@bench.command(epilog=exit_codes.HELP)
def speed(
    model: ModelOption = None,
    random: RandomOption = None,
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    accept: AcceptOption = None,
    repeats: RepeatsOption = None,
    tokens: TokensOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time plain decoding, each depth and the automatic one, by kind of prompt, and mlx-lm on the same weights.

    All run turn by turn in one process. The texts must be identical.
    """
    _prepare(save)
    from engine.bench.speed import bench_speed, speed_report

    result = bench_speed(
        _config(model, random, profile, kv_bits, accept), common.progress, repeats=repeats, tokens=tokens
    )
    return _give(result, speed_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def step(
    model: ModelOption = None,
    random: RandomOption = None,
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    accept: AcceptOption = None,
    steps: Annotated[int, typer.Option("--steps", min=4, help="Steps at each depth.")] = 60,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Split a decode step into building, dispatch, drafting, verifying, accepting and host work, at each depth."""
    _prepare(save)
    from engine.bench.step import bench_step, step_report

    result = bench_step(_config(model, random, profile, kv_bits, accept), common.progress, steps=steps)
    return _give(result, step_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def load(
    model: ModelOption = None,
    random: RandomOption = None,
    clients: Annotated[
        str, typer.Option("--clients", metavar="N,N,...", help="How many clients ask at once, one size after another.")
    ] = "1,8,32",
    requests: Annotated[int, typer.Option("--requests", min=1, help="Answers that each client asks for.")] = 2,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens an answer may have.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds.")] = 3,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Put several clients on our server and on mlx-lm's, over HTTP, by turns."""
    sizes = _numbers(clients, "--clients")
    _prepare(save)
    from mtplx_tui.bench_load.measure import bench_load, load_report

    result = bench_load(
        _name(model, random), common.progress, clients=sizes, requests=requests, tokens=tokens, repeats=repeats
    )
    return _give(result, load_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def serve(
    model: ModelOption = None,
    random: RandomOption = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Answers in a round.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds.")] = 5,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Measure what our server adds to its engine: time before the first token, and processor time while it streams."""
    _prepare(save)
    from mtplx_tui.bench_load.serving import bench_serve, serve_report

    result = bench_serve(_name(model, random), common.progress, requests=requests, repeats=repeats)
    return _give(result, serve_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def context(
    model: ModelOption = None,
    random: RandomOption = None,
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    accept: AcceptOption = None,
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N,...", help="Prompt lengths in tokens, as far as the context goes.")
    ] = "512,2048,8192,16384",
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs at each length; fewer where they are slow.")
    ] = 3,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time reading prompts of several lengths, and decoding behind them, against mlx-lm."""
    wanted = _numbers(lengths, "--lengths")
    _prepare(save)
    from engine.bench.context import bench_context, context_report

    result = bench_context(
        _config(model, random, profile, kv_bits, accept), common.progress, lengths=wanted, repeats=repeats
    )
    return _give(result, context_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def suite(
    model: ModelOption = None,
    random: RandomOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest runs, to see that all of it works.")] = False,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run speed, step, context and load one after the other, into one report."""
    _prepare(save)
    name = _name(model, random)
    from mtplx_tui.bench_suite import bench_suite, suite_report

    result = bench_suite(name, common.progress, quick=quick)
    return _give(result, suite_report(result), save, as_json)


@bench.command(epilog=exit_codes.HELP)
def ui(model: ModelOption = None, save: SaveOption = None, as_json: JsonOption = False) -> int:
    """Measure what the screen costs the engine, and how long its user waits, also over a slow line; takes minutes."""
    _prepare(save)
    from mtplx_tui.bench_ui.measure import bench_ui
    from mtplx_tui.bench_ui.result import ui_report

    result = bench_ui(model, common.progress)
    return _give(result, ui_report(result), save, as_json)


def _prepare(save: Path | None) -> None:
    """Make the folder for the results before anything is measured, so that a wrong one costs nobody an hour."""
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)


def _name(model: str | None, random: str | None) -> str | None:
    """The model's name, or the folder of a random one, which is written where it is not here yet."""
    if random is None:
        return model
    if model is not None:
        raise common.UsageError("--model and --random name two models; give one of them.")
    from engine.bench.shapes import shape

    wanted = shape(random)
    from engine import device

    device.prepare()
    from engine.bench.random_models import ensure

    common.progress(f"random weights: {random}")
    return str(ensure(random, wanted))


def _config(
    model: str | None, random: str | None, profile: ProfileName, kv_bits: KvBits | None, accept: float | None
) -> "EngineConfig":
    config = EngineOptions(_name(model, random), profile=profile, kv_bits=kv_bits).config()
    return replace(config, acceptance=accept)


def _numbers(text: str, option: str) -> list[int]:
    """Positive whole numbers from a list with commas. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise common.UsageError(f"{option} is {text!r}; give whole numbers above 0, separated by commas.")
    return sorted({int(part) for part in parts})


def _give(result: Any, report: "Report", save: Path | None, as_json: bool) -> int:
    """Print a result, then keep it where asked: what took long to measure is seen even where the disk is full."""
    from engine.bench.report import as_dict, as_text
    from engine.bench.save import save as keep

    if as_json:
        common.print_json(as_dict(result))
    else:
        print("\n".join(as_text(report)), flush=True)
    if save is not None:
        for file in keep(save, result, report):
            common.say(f"Saved {file}")
    return exit_codes.OK
