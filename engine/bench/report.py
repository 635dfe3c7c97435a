"""Results as tables, and tables as text for a terminal, Markdown and CSV."""

import csv
import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.bench.receipts import Receipts
from engine.bench.stats import Spread

Cell = str | int | float | Spread | None
"""None is shown as n/a; a Spread as its median and its middle half."""


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is for files; every row has a cell for each column."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A result for people. `notes` are sentences that belong to the figures."""

    title: str
    receipts: Receipts
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


def as_dict(value: Any) -> Any:
    """A result as plain JSON values; floats keep five significant digits, which is more than any of them carries."""
    if dataclasses.is_dataclass(value):
        return {field.name: as_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_dict(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def as_text(report: Report) -> list[str]:
    """Lines for a terminal: columns aligned, numbers to the right."""
    lines = [report.title, *_setting(report.receipts)]
    for table in report.tables:
        lines += ["", table.title] if table.title else [""]
        cells = [table.columns, *(tuple(map(_shown, row)) for row in table.rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(table.columns))]
        for row in cells:
            padded = (
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join(padded).rstrip())
    return [*lines, *(["", *report.notes] if report.notes else [])]


def as_markdown(report: Report) -> str:
    """One document with every table, and the receipts at its end."""
    lines = [f"# {report.title}", "", *(f"- {line}" for line in _setting(report.receipts))]
    for table in report.tables:
        lines += ["", f"## {table.title or table.name}", ""]
        lines += [_markdown_row(table.columns), "|---" + "|---:" * (len(table.columns) - 1) + "|"]
        lines += [_markdown_row([_shown(cell) for cell in row]) for row in table.rows]
    if report.notes:
        lines += ["", *(f"- {note}" for note in report.notes)]
    facts = report.receipts
    lines += ["", "## Receipts", ""]
    lines += [f"- {name}: {version}" for name, version in facts.machine["versions"].items()]
    lines += [f"- prompts {each.name}: {each.count}, sha256 {each.sha256[:16]}" for each in facts.prompts]
    lines += [f"- {key}: {value}" for key, value in facts.settings.items()]
    lines += [f"- seed: {facts.seed}", f"- load at the start: {_shown(facts.load)}"]
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """One table; a column that holds Spreads becomes four: the median under its name, then q1, q3 and values."""
    spreads = [any(isinstance(row[at], Spread) for row in table.rows) for at in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = [
        [name, f"{name} q1", f"{name} q3", f"{name} values"] if spread else [name]
        for name, spread in zip(table.columns, spreads, strict=True)
    ]
    writer.writerow([name for names in header for name in names])
    for row in table.rows:
        cells: list[Any] = []
        for cell, spread in zip(row, spreads, strict=True):
            if isinstance(cell, Spread):
                cells += [as_dict(cell.median), as_dict(cell.q1), as_dict(cell.q3), cell.values]
            else:
                cells += [as_dict(cell), None, None, None] if spread else [as_dict(cell)]
        writer.writerow(cells)
    return out.getvalue()


def _setting(facts: Receipts) -> list[str]:
    machine = facts.machine
    blas = machine["blas"]
    where = f"{machine['kind']} ({machine['name']}), {machine['cores']} cores"
    if machine["kind"] == "cpu":
        where += f", BLAS: {blas['name'] if blas else 'the one inside MLX'}"
    lines = [f"{facts.model['name']} on {where}"]
    lines.append(f"profile {facts.engine['profile']['name']}; measured {facts.date}")
    if facts.load is not None and facts.load > machine["cores"]:
        lines.append(f"BUSY: {facts.load:.1f} processes wanted to run on {machine['cores']} cores when this began")
    if facts.engine["acceptance"] is not None:
        lines.append(f"SYNTHETIC: drafts are accepted with chance {facts.engine['acceptance']}, whatever they say")
    return lines


def _markdown_row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _shown(cell: Cell) -> str:
    if cell is None:
        return "n/a"
    if isinstance(cell, Spread):
        median = _shown(cell.median)
        return median if cell.values == 1 else f"{median} ({_shown(cell.q1)} to {_shown(cell.q3)})"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}"
    return str(cell)
