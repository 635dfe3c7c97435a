"""The dashboard written to files: every step as CSV, the figures as JSON, the picture as SVG."""

import csv
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from mtplx_tui import paths
from mtplx_tui.dashboard.breakeven import break_even, step_seconds
from mtplx_tui.dashboard.view import View

COLUMNS = ("request", "step", "at", "source", "drafted", "accepted", "emitted", "seconds", "rows", "context", "refused",
           "text")  # fmt: skip


def export(view: View, picture: str, now: datetime) -> Path:
    """Write a folder of three files and give its path. Raises OSError."""
    folder = paths.exports_folder() / f"dashboard-{now:%Y%m%d-%H%M%S}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "steps.csv").open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for step in reversed(view.steps):
            rows.writerow((step.request_id, step.step, step.at, step.source, step.drafted, step.accepted, step.emitted,
                           step.seconds, step.rows, step.context, step.refused, "".join(step.tokens)))  # fmt: skip
    (folder / "figures.json").write_text(json.dumps(_figures(view), indent=2), encoding="utf-8")
    (folder / "dashboard.svg").write_text(picture, encoding="utf-8")
    return folder


def _figures(view: View) -> dict[str, object]:
    needed = break_even(view.snapshot.depths, step_seconds(view.steps))
    return {
        "model": None if view.model is None else {"name": view.model.name, "mode": view.model.mode},
        "window_steps": view.snapshot.window,
        "acceptance": [asdict(rate) | {"break_even": needed.get(rate.depth)} for rate in view.snapshot.depths],
        "tok_s_half_seconds": list(view.snapshot.series),
        "requests": [asdict(row) for row in view.rows],
        "machine": asdict(view.machine),
    }
