"""The tune room's page: the depths side by side, and what came of it."""

from typing import Any

from engine.handle import ModelInfo
from mtplx_tui.charts.bars import bar
from mtplx_tui.charts.numbers import nice_top, percent, rate
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, fit, merge, wrap
from mtplx_tui.runs.failure import failure_lines
from mtplx_tui.runs.job import Job

NAME = 12
"""Cells of a guard's name."""
LEAST_BAR = 8
"""Cells below which a bar tells nothing that its number does not."""
COLUMNS = "depth   tok/s  least   most  tok/step  ms/step  accepted  text       "
GUARDS = (
    ("same text", "every greedy answer must be plain decoding's, token for token, or the depth is left out"),
    ("spread", "a depth is kept only if it beats plain decoding by more than the rounds differ"),
    ("turns", "all depths take turns, so that whatever else the machine does meets each of them"),
    ("process", "the measured engine runs in a process of its own; this screen draws twice a second"),
)


def tune_page(job: Job | None, model: ModelInfo | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines of `width` cells."""
    below = min(len(GUARDS) + 7, height // 2)
    return [
        *framed(_depths(job, model, width - 4, glyphs), width, height - below, glyphs, "depth by depth", _hint(job)),
        *framed(_outcome(job, width - 4, below - 2, glyphs), width, below, glyphs, "what it is worth"),
    ]


def _hint(job: Job | None) -> str:
    return "x stops" if job is not None and job.state == "running" else "s starts"


def _depths(job: Job | None, model: ModelInfo | None, width: int, glyphs: Glyphs) -> list[Line]:
    if job is None:
        name = model.name if model else "the model"
        text = (
            f"How many tokens to draft a step is found by measuring {name} on this machine: s starts. It takes a "
            "minute or two with a small model; use the machine for nothing else meanwhile."
        )
        return wrap([(text, "muted")], width)
    if job.result is None:
        return [fit(((one_line(line, glyphs), "muted"),), width, glyphs.ellipsis) for line in job.lines]
    rows = job.result["rows"]
    top = nice_top(max(row["tok_s"]["median"] for row in rows))
    return [((COLUMNS, "muted"),), *(_row(row, job.result["best_depth"], top, width, glyphs) for row in rows)]


def _row(row: dict[str, Any], best: int, top: float, width: int, glyphs: Glyphs) -> Line:
    speed = row["tok_s"]
    held = "" if row["acceptance"] is None else percent(row["acceptance"])
    figures = (
        f"{row['depth']:>5}  {rate(speed['median']):>6} {rate(speed['min']):>6} {rate(speed['max']):>6}"
        f"  {row['tokens_per_step']:>8.2f} {1e3 * row['seconds_per_step']:>8.2f}  {held:>8}  "
    )
    text = ("same", "") if row["identical_text"] else ("DIFFERENT", "error strong")
    kept = best and row["depth"] == best
    room = width - len(COLUMNS) - len(" kept")
    return merge([(figures, "strong" if kept else ""), (f"{text[0]:<10}", text[1]),
                  (bar(speed["median"] / top, room, glyphs) if room >= LEAST_BAR else "", "accept"),
                  (" kept" if kept else "", "bonus")])  # fmt: skip


def _outcome(job: Job | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    if job is not None and job.state == "failed":
        lines += failure_lines(job.error, width, height, glyphs)
    elif job is not None and job.state == "stopped":
        lines += [(("stopped; nothing is saved", "warn"),)]
    elif job is not None and job.result is not None:
        lines += wrap([(one_line(job.result["why"], glyphs), "strong")], width)
        if job.result["best_depth"]:
            lines += wrap([("The automatic depth starts from it when the model is loaded next.", "muted")], width)
    if lines:
        lines.append(())
    for name, text in GUARDS:
        guard = _guard(name, text, width)
        if len(lines) + len(guard) > height:  # before the start there was room for all of them
            break
        lines += guard
    return lines


def _guard(name: str, text: str, width: int) -> list[Line]:
    lines = wrap([(text, "muted")], width - NAME)
    return [((f"{name if not place else '':<{NAME}}", "muted"), *line) for place, line in enumerate(lines)]
