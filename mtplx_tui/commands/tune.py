"""`mtplx-tui tune`: which depth is fastest here, kept for the next start."""

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common
from mtplx_tui.commands.common import EngineOptions, JsonOption, KvBitsOption, ModelOption, ProfileOption

if TYPE_CHECKING:
    from engine.tuned import Tuning


def tune(
    model: ModelOption = None,
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    retune: Annotated[bool, typer.Option("--retune", help="Measure even where a result is kept already.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Measure plain decoding and each depth on this machine, and keep what --depth auto starts from.

    Takes a minute or two with a small model; use the machine for nothing else meanwhile. A result is kept only where a
    depth is faster than plain decoding by more than the measurements differ, and it holds for this model, device,
    profile and these versions.
    """
    from engine.tune import tune as run
    from engine.tuned_files import find, remove, save

    config = EngineOptions(model, profile=profile, kv_bits=kv_bits).config()
    folder = paths.tunings_folder()
    kept = None if retune else find(folder, config)
    if kept is not None:
        date = time.strftime("%Y-%m-%d", time.localtime(kept.measured_at))
        why = f"{kept.why} (measured on {date}; --retune measures again)"
        return _show(dataclasses.replace(kept, why=why), as_json)
    found = run(config, common.progress)
    try:
        if found.saved:
            save(folder, found)
            found = dataclasses.replace(found, why=f"{found.why}; saved for the next start")
        elif remove(folder, found):
            found = dataclasses.replace(found, why=f"{found.why}, and what was saved before is removed")
    except OSError as error:  # minutes of measuring must not be lost with it
        why = f"{found.why}; NOT saved, since {error.filename or folder} refuses: {error.strerror or error}"
        _show(dataclasses.replace(found, saved=False, why=why), as_json)
        return exit_codes.FAILED
    return _show(found, as_json)


def table(tuning: "Tuning") -> list[str]:
    """The result as lines for a person."""
    lines = [f"{tuning.model} on {tuning.device}, profile {tuning.profile}", ""]
    lines.append(f"{'depth':>5} {'tok/s':>8}  {'min to max':18} {'tok/step':>8} {'ms/step':>8} {'accepted':>8}  text")
    for row in tuning.rows:
        between = f"{row.tok_s.min:.1f} to {row.tok_s.max:.1f}"
        accepted = "" if row.acceptance is None else f"{row.acceptance:.0%}"
        text = "same" if row.identical_text else "DIFFERENT"
        mark = "  <" if row.depth and row.depth == tuning.best_depth else ""
        lines.append(
            f"{row.depth:5} {row.tok_s.median:8.1f}  {between:18} {row.tokens_per_step:8.2f} "
            f"{1e3 * row.seconds_per_step:8.2f} {accepted:>8}  {text}{mark}"
        )
    return [*lines, "", tuning.why]


def _show(tuning: "Tuning", as_json: bool) -> int:
    if as_json:
        result: dict[str, Any] = dataclasses.asdict(tuning)
        common.print_json(result)
    else:
        print("\n".join(table(tuning)))
    return exit_codes.OK
