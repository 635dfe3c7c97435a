"""What `tune` found out about a model on a machine: figures for people, and the part that the engine starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tuned:
    """Where the automatic depth starts, and what it knows then.

    Attributes:
        best_depth: the depth that made the most tokens a second, 1 or more.
        seconds_by_depth: [d] = median wall seconds of a step of one row at depth d, from 0 on without gaps.
        acceptance_by_place: [i] = how often the draft at place i + 1 was accepted where it was judged.
        excluded: depths whose greedy text was not plain decoding's, so that they must not be chosen.
    """

    best_depth: int
    seconds_by_depth: tuple[float, ...]
    acceptance_by_place: tuple[float, ...]
    excluded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over the repeats."""

    median: float
    min: float
    max: float

    @property
    def spread(self) -> float:
        return self.max - self.min


@dataclass(frozen=True, slots=True)
class DepthRow:
    """One depth's figures, over all prompts and repeats.

    Attributes:
        tok_s: tokens a second after the first output.
        seconds_per_step: median wall time of a step.
        acceptance: share of the judged drafts that were accepted; None at depth 0.
        acceptance_by_place: the same for each place.
        identical_text: whether every greedy text was plain decoding's, token for token.
    """

    depth: int
    tok_s: Range
    seconds_per_step: float
    tokens_per_step: float
    acceptance: float | None
    acceptance_by_place: tuple[float, ...]
    identical_text: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune --json` prints and what is kept, with everything that it holds for.

    Attributes:
        fingerprint: of the model's files. device, versions: where it was measured, and with what.
        measured_at: seconds since 1970.
        rows: depth 0, 1, 2, ... without gaps.
        best_depth: 0 where no depth is worth keeping. saved: whether it is kept. why: that decision in words.
    """

    model: str
    fingerprint: str
    device: str
    versions: Mapping[str, str]
    profile: str
    kv_bits: Literal[4, 8] | None
    measured_at: int
    rows: tuple[DepthRow, ...]
    best_depth: int
    saved: bool
    why: str

    def tuned(self) -> Tuned:
        """What the engine starts from. Only for one that is worth keeping."""
        return Tuned(
            best_depth=self.best_depth,
            seconds_by_depth=tuple(row.seconds_per_step for row in self.rows),
            acceptance_by_place=self.rows[-1].acceptance_by_place,
            excluded=tuple(row.depth for row in self.rows if not row.identical_text),
        )
