"""Results on disk: JSON with everything, Markdown to read, and a CSV for each table."""

import json
import re
from pathlib import Path
from typing import Any

from engine.bench.report import Report, as_csv, as_dict, as_markdown


def save(folder: Path, result: Any, report: Report) -> list[Path]:
    """Write a result under a name of benchmark, model and date, never over another one; the files written.

    Raises OSError where the folder can not be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = report.receipts
    date = re.sub(r"\D", "", facts.date.partition("+")[0])
    stem = re.sub(r"[^\w.-]+", "-", f"{facts.benchmark}-{facts.model['name']}-{date}")
    texts = {".json": json.dumps(as_dict(result), indent=2) + "\n", ".md": as_markdown(report)}
    texts |= {f"-{table.name}.csv": as_csv(table) for table in report.tables}
    stem = next(name for name in _names(stem) if not any((folder / f"{name}{end}").exists() for end in texts))
    for end, text in texts.items():
        (folder / f"{stem}{end}").write_text(text, encoding="utf-8")
    return [folder / f"{stem}{end}" for end in texts]


def _names(stem: str) -> Any:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1
