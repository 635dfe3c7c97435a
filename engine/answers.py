"""What a row leaves in the bank when its answer ends, so that the next turn of its conversation does not read it again.

A step may commit tokens behind the answer's end, and the one behind it is under way already when the end is seen. Keys
and values of the answer are still in the caches then; the recurrent states behind its last token are made once more,
from the block in which it ended.
"""

from dataclasses import dataclass

import mlx.core as mx

from engine.caches.bank import Bank, worth_keeping
from engine.caches.clock import Clock
from engine.caches.recurrent import RecurrentCache, Replay
from engine.caches.state import ModelState
from engine.caches.stretch import Arrays, Stretch
from engine.models.spec import SpecModel
from engine.row import Row
from engine.rows import Backlog, Rows


@dataclass(frozen=True, slots=True)
class Landing:
    """What a step leaves for the rows that end in it, in batch order.

    Attributes:
        replays: for each recurrent layer of the trunk. backlog: what the head had to read then; None without a head.
    """

    replays: list[Replay]
    backlog: Backlog | None

    @classmethod
    def of(cls, rows: Rows) -> "Landing":
        """Of the step that was built last."""
        caches = [cache for cache in rows.state.trunk if isinstance(cache, RecurrentCache)]
        return cls([cache.replay for cache in caches if cache.replay is not None], rows.backlog)


@dataclass(frozen=True, slots=True)
class Ended:
    """A row whose answer ended in a step.

    Attributes:
        landing: of that step. place: of the row in its batch. fresh: tokens that the step gave, the answer's and those
            behind its end. taken: how many of these the answer has, at least one.
    """

    row: Row
    landing: Landing
    place: int
    fresh: int
    taken: int


def keep(spec: SpecModel, bank: Bank, rows: Rows, ended: Ended) -> None:
    """Leave a checkpoint behind the last token but one of an answer whose row is still in the batch.

    The last one was never read, as at the end of a prompt.
    """
    row = ended.row
    ids = (*row.request.prompt, *row.made)
    end = len(ids) - 1
    node = bank.deepest_here(ids, row.request.cache_scope)
    if not worth_keeping(end - node.end, end):
        return
    place = rows.rows.index(row)
    kept = mx.array([ended.taken], dtype=mx.int32)
    replays = iter(ended.landing.replays)
    trunk: list[Arrays] = []
    for cache in rows.state.trunk:
        if isinstance(cache, RecurrentCache):
            trunk.append(next(replays).row(ended.place).after(kept))
        else:
            trunk.append(cache.cut(node.end, end, place))
    head, hidden = _head(spec, rows, place, ended, max(node.end - 1, 0), end)
    bank.add(node, ids[node.end : end], Stretch(trunk, head, hidden))


def _head(
    spec: SpecModel, rows: Rows, place: int, ended: Ended, start: int, end: int
) -> tuple[list[Arrays], mx.array | None]:
    """The head's rows from `start` on, and the hidden that it pairs with the token at `end`.

    It reads its backlog here, which may be as old as the last step with drafts.
    """
    backlog = ended.landing.backlog
    if backlog is None:
        return [], None
    fresh = int(backlog.fresh[ended.place].item())  # type: ignore[arg-type]  # untyped in its stubs
    behind = ended.fresh - ended.taken  # tokens of the step that are not the answer's
    hidden = backlog.hidden[ended.place : ended.place + 1, : fresh - behind]
    tokens = backlog.tokens[ended.place : ended.place + 1, : fresh - behind]
    read = end - tokens.shape[1]  # by the head, before this backlog
    clock = Clock(mx.array([read], dtype=mx.int32), read)
    state = ModelState([], [cache.select(mx.array([place]), clock) for cache in rows.state.head], Clock.zero(), clock)
    spec.head_hidden(tokens, hidden, state)
    return [cache.cut(start, end - 1) for cache in state.head], mx.contiguous(hidden[:, -1:])
