"""Public models with an MTP head, from the data file beside the bundled ones, and which of them suit a machine."""

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.models.locate import ASSETS

FILE = ASSETS / "catalog.toml"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One public checkpoint; None is unknown.

    Attributes:
        repo: on the hub. family: `model_type` of its config. size: bytes of the download.
        peak: bytes of memory that its publisher measured while serving it.
        context: tokens that the model was made for.
    """

    repo: str
    family: str | None
    quantization: str
    size: int
    peak: int
    head: str
    context: int | None
    licence: str | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to try first on machines with one of these chips (None is any) and less memory than `below` bytes."""

    chips: tuple[str, ...] | None
    below: int | None
    repos: tuple[str, ...]

    def holds(self, memory: int, chip: str | None) -> bool:
        return (self.chips is None or chip in self.chips) and (self.below is None or memory < self.below)


@cache
def catalog() -> tuple[CatalogModel, ...]:
    """All of them, as the file orders them."""
    return tuple(
        CatalogModel(
            repo=entry["repo"],
            family=entry.get("family"),
            quantization=entry["quantization"],
            size=entry["size"],
            peak=int(entry["peak_gib"] * GIB),
            head=entry["head"],
            context=entry.get("context"),
            licence=entry.get("licence"),
        )
        for entry in _file()["model"]
    )


def advised(memory: int, chip: str | None) -> tuple[str, ...]:
    """Repositories to try first, the best first. Never one whose measured peak is more than the machine has.

    Args:
        memory: bytes of the machine. chip: m1, m2 and so on, intel, or None where it is no Mac.
    """
    peaks = {model.repo: model.peak for model in catalog()}
    rule = next((rule for rule in rules() if rule.holds(memory, chip)), None)
    return tuple(repo for repo in rule.repos if peaks[repo] <= memory) if rule else ()


@cache
def rules() -> tuple[Advice, ...]:
    """The file's advice; the first rule that holds counts."""
    return tuple(
        Advice(
            chips=tuple(entry["chips"]) if "chips" in entry else None,
            below=entry["below_gib"] * GIB if "below_gib" in entry else None,
            repos=tuple(entry["repos"]),
        )
        for entry in _file()["advice"]
    )


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
