"""The running batch as device state: rows join and leave between steps."""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from engine.caches.state import ModelState, StateCheckpoint
from engine.noise import row_keys
from engine.penalties import Penalties
from engine.row import Row
from engine.sampler import Filters

BACKLOG = 64  # hiddens that may wait for the head while rows decode without drafts


@dataclass(slots=True)
class Backlog:
    """Trunk hiddens whose head rows are not committed yet, with the token that followed each.

    Attributes:
        hidden: [B, K, H]. tokens: [B, K] int32. fresh: [B] int32, how many of the K are real.
    """

    hidden: mx.array
    tokens: mx.array
    fresh: mx.array


class RowsCheckpoint(NamedTuple):
    """A batch between two steps."""

    state: StateCheckpoint
    pending: mx.array
    backlog: Backlog | None
    penalties: Penalties | None


class Rows:
    """B rows that are decoded together.

    Attributes:
        rows: the host's side of each row, in batch order. penalties: None where no row has any.
        state: caches. pending: [B] int32, each row's last token, not yet in the caches.
        backlog: what the head still has to read; None in autoregressive mode.
        constrained: whether a row has a grammar.
        keys: [B, 3, 2] noise keys. coupled, blockwise: [B] bool, rows under that accept rule.
    """

    def __init__(
        self,
        rows: list[Row],
        state: ModelState,
        pending: mx.array,
        backlog: Backlog | None,
        penalties: Penalties | None,
        vocab_size: int,
    ) -> None:
        self.rows = rows
        self.state = state
        self.pending = pending
        self.backlog = backlog
        self.vocab_size = vocab_size
        samplings = [row.request.sampling for row in rows]
        self.keys = row_keys([row.seed for row in rows])
        self.filters = Filters.of(samplings, vocab_size)
        self.penalties = penalties
        self.constrained = any(row.grammar is not None for row in rows)
        self.rules = {row.rule for row in rows}
        self.coupled = mx.array([row.rule == "coupled" for row in rows])
        self.blockwise = mx.array([row.rule == "block" for row in rows])
        asked = [row.request.logprobs for row in rows if row.request.logprobs is not None]
        self.top_logprobs = max(asked) if asked else None

    def __len__(self) -> int:
        return len(self.rows)

    def tighten(self, in_flight: int) -> None:
        """Correct the caches' bound from what the host has read; `in_flight` tokens a row may still be on their way."""
        longest = max(len(row.request.prompt) + len(row.made) - 1 for row in self.rows)
        self.state.tighten(longest + in_flight)

    def checkpoint(self) -> "RowsCheckpoint":
        """What is committed now, to come back to if a step fails half-way."""
        return RowsCheckpoint(self.state.checkpoint(), self.pending, self.backlog, self.penalties)

    def restore(self, checkpoint: "RowsCheckpoint") -> None:
        """Go back to what was committed then."""
        self.state.restore(checkpoint.state)
        self.pending, self.backlog, self.penalties = checkpoint.pending, checkpoint.backlog, checkpoint.penalties

    def arrays(self) -> list[mx.array]:
        """All device arrays that the next step starts from, to be evaluated together."""
        arrays = [*self.state.arrays(), self.pending]
        if self.backlog is not None:
            arrays += [self.backlog.hidden, self.backlog.tokens, self.backlog.fresh]
        if self.penalties is not None:
            arrays += [self.penalties.seen, self.penalties.made]
        return arrays

    def select(self, keep: list[int]) -> "Rows":
        """Some of the rows, in the order given."""
        index = mx.array(keep, dtype=mx.int32)
        backlog = self.backlog
        if backlog is not None:
            backlog = Backlog(backlog.hidden[index], backlog.tokens[index], backlog.fresh[index])
        rows = [self.rows[i] for i in keep]
        penalties = self.penalties
        if penalties is not None:
            penalties = penalties.select(index) if any(row.request.sampling.penalised for row in rows) else None
        return Rows(rows, self.state.select(keep), self.pending[index], backlog, penalties, self.vocab_size)

    @staticmethod
    def merge(parts: "list[Rows]") -> "Rows":
        """One batch of all the parts' rows, in their order."""
        if len(parts) == 1:
            return parts[0]
        backlogs = [part.backlog for part in parts if part.backlog is not None]
        return Rows(
            [row for part in parts for row in part.rows],
            ModelState.merge([part.state for part in parts]),
            mx.concatenate([part.pending for part in parts]),
            _merge_backlogs(backlogs) if backlogs else None,
            Penalties.merge([(part.penalties, len(part)) for part in parts], parts[0].vocab_size),
            parts[0].vocab_size,
        )


def _merge_backlogs(parts: list[Backlog]) -> Backlog:
    longest = max(part.tokens.shape[1] for part in parts)
    return Backlog(
        mx.concatenate([_padded(part.hidden, longest) for part in parts]),
        mx.concatenate([_padded(part.tokens, longest) for part in parts]),
        mx.concatenate([part.fresh for part in parts]),
    )


def _padded(x: mx.array, length: int) -> mx.array:
    missing = length - x.shape[1]
    if not missing:
        return x
    return mx.concatenate([x, mx.zeros((x.shape[0], missing, *x.shape[2:]), dtype=x.dtype)], axis=1)
