"""`mtplx-tui bench`: how fast this machine decodes, and what the screen costs."""

from typing import Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import JsonOption, ModelOption

bench = typer.Typer(help="Measure speed on this machine.", rich_markup_mode=None, no_args_is_help=True)


@bench.command(epilog=exit_codes.HELP)
def speed(model: ModelOption = None, as_json: JsonOption = False) -> int:
    """Time plain decoding and each depth, and mlx-lm on the same weights, turn by turn in one process."""
    from engine.bench import bench_speed
    from engine.config import EngineConfig

    result = bench_speed(EngineConfig(model), common.progress)
    if as_json:
        common.print_json(result)
    else:
        print("\n".join(speed_table(result)))
    return exit_codes.OK


@bench.command(epilog=exit_codes.HELP)
def ui(model: ModelOption = None, as_json: JsonOption = False) -> int:
    """Time the engine with and without the chat screen drawing its answer."""
    from mtplx_tui.bench_ui import BenchFailedError, bench_ui

    try:
        result = bench_ui(model)
    except BenchFailedError as error:
        raise common.CommandFailedError(str(error)) from error
    if as_json:
        common.print_json(result)
    else:
        with_ui, without_ui = result["with_ui_tok_s"]["median"], result["without_ui_tok_s"]["median"]
        print(f"{with_ui:.1f} tok/s with the screen, {without_ui:.1f} without: {result['ratio']:.1%} of the speed")
        print(f"the screen takes {result['ui_cpu_share']:.0%} of a core; {len(result['runs'])} pairs of answers")
    return exit_codes.OK


def speed_table(result: dict[str, Any]) -> list[str]:
    """The result of `bench speed` as lines for a person."""
    lines = [f"{result['model']} on {result['device']}, BLAS: {result['blas'] or 'the one inside MLX'}", ""]
    lines.append(f"{'engine':10} {'mode':5} {'depth':>5} {'tok/step':>9} {'tok/s':>8}  min to max")
    for row in result["rows"]:
        rate, depth = row["decode_tok_s"], row["depth"]
        lines.append(
            f"{row['engine']:10} {row['mode']:5} {'auto' if depth is None else depth:>5} {row['tokens_per_step']:9.2f} "
            f"{rate['median']:8.1f}  {rate['min']:.1f} to {rate['max']:.1f}"
        )
    same = "yes" if result["identical_text"] else "NO"
    lines += ["", f"best against mlx-lm {result['ratio_best_vs_peer']:.2f}x, against plain decoding "]
    lines[-1] += f"{result['ratio_best_vs_ar']:.2f}x; identical text: {same}"
    return lines
