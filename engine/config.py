"""What an engine is started with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.profiles import TURBO, Profile
from engine.tuned import Tuned

Mode = Literal["mtp", "ar"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings that hold for an engine's whole life.

    Attributes:
        model: a bundled name, a folder, or a hub repository that is already here; None is the bundled demo-13m.
        mode: mtp drafts with the model's own head and fails to load without one; ar decodes plainly.
        depth: drafts a step for requests that name none; None lets the policy choose.
        profile: what is traded for what.
        kv_bits: bits of a cached key or value; None keeps the model's own type.
        max_rows: requests decoded together; the rest wait.
        max_waiting: requests that may be here beyond max_rows; more are refused.
        memory_bytes: what weights, caches and work may take together; None is what the machine has for it.
        cache_bytes: memory for prefixes of earlier prompts; 0 keeps none.
        cache_folder: where prefixes outlive the program; None keeps them in memory only.
        disk_bytes: most that the folder may hold.
        timings_file: where the profile's calibration is kept; None measures it in every run.
        tuned: what was measured for this model on this machine; None lets the automatic depth find out as it goes.
        acceptance: benchmarks only: drafts are accepted with this chance whatever they say, so the text is rubbish and
            the cost real; None is honest.
    """

    model: str | None = None
    mode: Mode = "mtp"
    depth: int | None = None
    profile: Profile = TURBO
    kv_bits: Literal[4, 8] | None = None
    max_rows: int = 8
    max_waiting: int = 128
    memory_bytes: int | None = None
    cache_bytes: int = 1 << 30
    cache_folder: Path | None = None
    disk_bytes: int = 16 << 30
    timings_file: Path | None = None
    tuned: Tuned | None = None
    acceptance: float | None = None
