"""What a figure has to come with: what it was measured on, with what settings, on which texts, when, how busy."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine import device
from engine.config import EngineConfig
from engine.handle import ModelInfo


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Texts that were run: `sha256` is over all of them in order, so that two runs can be told to be of the same."""

    name: str
    count: int
    sha256: str

    @staticmethod
    def of(name: str, prompts: Sequence[object]) -> "PromptSet":
        digest = hashlib.sha256("\0".join(map(repr, prompts)).encode()).hexdigest()
        return PromptSet(name, len(prompts), digest)


@dataclass(frozen=True, slots=True)
class Receipts:
    """What stands behind the figures of one benchmark.

    Attributes:
        date: of the start, UTC.
        model: what it is, without the place where it lies.
        engine: the engine's own settings. settings: the benchmark's.
        machine: device, BLAS, cores, memory, system and versions.
        load: processes that wanted to run, means over the last minute at the start: above what the cores can carry,
            figures are of a busy machine. None where the system does not say.
    """

    benchmark: str
    date: str
    model: dict[str, Any]
    engine: dict[str, Any]
    settings: dict[str, Any]
    prompts: tuple[PromptSet, ...]
    seed: int
    machine: dict[str, Any] = field(default_factory=device.describe)
    load: float | None = None


def receipts(
    benchmark: str,
    model: ModelInfo | Mapping[str, Any],
    config: EngineConfig,
    settings: Mapping[str, Any],
    prompts: Sequence[PromptSet],
    seed: int = 0,
) -> Receipts:
    """Receipts of a benchmark that starts now."""
    facts = asdict(model) if isinstance(model, ModelInfo) else dict(model)
    facts.pop("path", None)
    engine = asdict(config)
    engine.pop("model")
    engine |= {name: str(value) for name, value in engine.items() if isinstance(value, Path)}
    return Receipts(
        benchmark,
        datetime.now(UTC).isoformat(timespec="seconds"),
        facts,
        engine,
        dict(settings),
        tuple(prompts),
        seed,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )
