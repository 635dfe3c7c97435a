"""What an engine is started with."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["mtp", "ar"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings that hold for an engine's whole life.

    Attributes:
        model: a bundled name, a folder, or a hub repository that is already here; None is the bundled demo-13m.
        mode: mtp drafts with the model's own head and fails to load without one; ar decodes plainly.
        depth: drafts a step for requests that name none; None lets the policy choose.
        max_rows: requests decoded together; the rest wait.
        cache_bytes: memory for prefixes of earlier prompts; 0 keeps none.
    """

    model: str | None = None
    mode: Mode = "mtp"
    depth: int | None = None
    max_rows: int = 8
    cache_bytes: int = 1 << 30
