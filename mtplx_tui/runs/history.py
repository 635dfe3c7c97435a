"""Results of earlier benchmarks, a folder each with what `bench --save` writes, to be read again and compared."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtplx_tui import paths


@dataclass(frozen=True, slots=True)
class Kept:
    """One result.

    Attributes:
        stem: its files' common name. kind: speed, step, context, load or suite. date: as the receipts say.
    """

    stem: Path
    kind: str
    model: str
    date: str
    result: dict[str, Any]

    @property
    def document(self) -> str:
        """The result as Markdown; empty where that file is gone."""
        try:
            return self.stem.with_name(self.stem.name + ".md").read_text(encoding="utf-8")
        except OSError:
            return ""


def results(folder: Path | None = None) -> list[Kept]:
    """All that are kept, the newest first. A file that is none of ours is left out."""
    found = [kept for file in (folder or paths.benchmarks_folder()).glob("*.json") if (kept := _read(file)) is not None]
    return sorted(found, key=lambda kept: kept.date, reverse=True)


def _read(file: Path) -> Kept | None:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        receipts = result["receipts"]
        return Kept(file.with_suffix(""), receipts["benchmark"], receipts["model"]["name"], receipts["date"], result)
    except (OSError, ValueError, LookupError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Change:
    """One figure now and before: medians, and whether they differ by more than both spread.

    Attributes:
        verdict: faster, slower, or same where the middle halves overlap.
    """

    name: str
    now: float
    before: float
    verdict: str

    @property
    def share(self) -> float:
        """0.05 is five percent more than before."""
        return self.now / self.before - 1 if self.before else 0.0


def compare(now: Kept, before: Kept) -> list[Change]:
    """Decode speeds that two results of one kind have in common, in the order of the newer one."""
    old = dict(_speeds(before.result))
    changes: list[Change] = []
    for name, spread in _speeds(now.result):
        if name in old:
            apart = spread["q1"] > old[name]["q3"] or spread["q3"] < old[name]["q1"]
            word = "same" if not apart else "faster" if spread["median"] > old[name]["median"] else "slower"
            changes.append(Change(name, spread["median"], old[name]["median"], word))
    return changes


def _speeds(value: Any, name: str = "") -> list[tuple[str, dict[str, float]]]:
    """Every tokens-a-second figure in a result, under the path that leads to it."""
    if isinstance(value, dict):
        if {"median", "q1", "q3"} <= value.keys():
            return [(name, value)] if "tok_s" in name else []
        label = _label(value)
        return [
            found
            for key, item in value.items()
            if key not in ("receipts", "kinds")
            for found in _speeds(item, " ".join(filter(None, (name, label, key if key != "rows" else ""))))
        ]
    if isinstance(value, list):
        return [found for item in value for found in _speeds(item, name)]
    return []


def _label(row: dict[str, Any]) -> str:
    """What tells a row from its neighbours."""
    parts = [str(row["engine"])] if "engine" in row else []
    parts += [f"{key} {row[key]}" for key in ("depth", "clients", "length", "tokens") if key in row]
    return " ".join(parts)
