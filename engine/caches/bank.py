"""Prefixes of earlier prompts, kept in memory so that they are not read again.

A tree over token ids. A node ends at a checkpoint and holds what the model's caches gained since its parent: keys and
values of its own tokens (so conversations with one beginning share them), the recurrent layers' state at its end (it
can not be cut, so only checkpoints can be resumed from), the head's keys and values, and the last hidden, which the
head pairs with the token that follows. Nothing in a node is ever written to; a row that resumes gets copies.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from engine.caches.kv import KVCache
from engine.caches.recurrent import RecurrentCache
from engine.caches.state import ModelState

SHORTEST = 32  # tokens; a shorter stretch is read faster than it is kept
INTERVAL = 2048  # tokens between checkpoints inside a long prompt

Arrays = tuple[mx.array, ...]


@dataclass(slots=True, eq=False)
class Node:
    """One stretch of tokens, from the end of its parent to a checkpoint.

    Attributes:
        end: tokens from the prompt's beginning to the checkpoint.
        trunk: for each layer, keys and values of the stretch, or conv and state at its end.
        head: for each head layer, keys and values of the rows that the stretch added.
        hidden: [1, 1, H], of the last token; None without a head.
    """

    ids: tuple[int, ...]
    end: int
    parent: "Node | None"
    trunk: list[Arrays] = field(default_factory=list)
    head: list[Arrays] = field(default_factory=list)
    hidden: mx.array | None = None
    children: list["Node"] = field(default_factory=list)
    used: float = 0.0

    @property
    def nbytes(self) -> int:
        arrays = [array for layer in (*self.trunk, *self.head) for array in layer]
        return sum(array.nbytes for array in arrays) + (0 if self.hidden is None else self.hidden.nbytes)

    def path(self) -> list["Node"]:
        """From the first stretch to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Found:
    """The deepest checkpoint on the way of a prompt, and why it is not deeper."""

    node: Node
    reason: str


class Bank:
    """The tree, with a limit on its bytes: the stretches that were not used for longest go first, ends before
    beginnings."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._root = Node((), 0, None)

    @property
    def nbytes(self) -> int:
        return sum(node.nbytes for node in self._nodes())

    def find(self, prompt: Sequence[int]) -> Found:
        """How much of a prompt is here. The last token is never looked up: it is the first step's to read."""
        node = self._root
        while True:
            child = next((c for c in node.children if _continues(prompt, c)), None)
            if child is None:
                return Found(node, self._why(prompt, node))
            node = child
            node.used = time.monotonic()

    def _why(self, prompt: Sequence[int], node: Node) -> str:
        if not node.children:
            return "nothing cached yet" if node is self._root else "everything cached on this way was used"
        shared = max(_shared(prompt[node.end :], child.ids) for child in node.children)
        return f"no checkpoint further on: prompts part at token {node.end + shared}, after the last one at {node.end}"

    def add(self, parent: Node, ids: tuple[int, ...], state: ModelState, hidden: mx.array | None) -> Node:
        """Keep what `state`, of one row that is reading, gained since `parent`; `ids` are the tokens of that.

        Gives the node, an older one where these tokens are here already.
        """
        known = next((child for child in parent.children if child.ids == ids), None)
        if known is not None:
            return known
        end = parent.end + len(ids)
        node = Node(ids, end, parent, used=time.monotonic(), hidden=None if hidden is None else mx.contiguous(hidden))
        node.trunk = [_layer(cache, parent.end, end) for cache in state.trunk]
        node.head = [_layer(cache, max(parent.end - 1, 0), end - 1) for cache in state.head]
        mx.eval([*node.trunk, *node.head, *([] if node.hidden is None else [node.hidden])])
        parent.children.append(node)
        self._shrink(spare=node)
        return node

    def restore(self, node: Node, state: ModelState) -> None:
        """Put a node's whole prefix into the empty caches of one row that is going to read on."""
        path = node.path()
        for place, cache in enumerate(state.trunk):
            if isinstance(cache, RecurrentCache):
                cache.conv, cache.state = node.trunk[place]
            else:
                cache.keys, cache.values = _joined([step.trunk[place] for step in path])
        for place, head in enumerate(state.head):
            head.keys, head.values = _joined([step.head[place] for step in path])
        state.clock.advance_all(node.end)
        state.head_clock.advance_all(node.end - 1 if state.head else 0)

    def clear(self) -> None:
        """Forget everything."""
        self._root = Node((), 0, None)

    def _nodes(self) -> Iterator[Node]:
        pending = list(self._root.children)
        while pending:
            node = pending.pop()
            pending += node.children
            yield node

    def _shrink(self, spare: Node) -> None:
        kept = set(map(id, spare.path()))
        total = self.nbytes
        while total > self._budget:
            ends = [node for node in self._nodes() if not node.children and id(node) not in kept]
            if not ends:
                return
            oldest = min(ends, key=lambda node: node.used)
            assert oldest.parent is not None
            oldest.parent.children.remove(oldest)
            total -= oldest.nbytes


def checkpoints(prompt: Sequence[int], turn_ends: frozenset[int], begun: int) -> list[int]:
    """Where a prompt is worth a checkpoint behind its first `begun` tokens, ascending.

    After the first turn (system text and tools), after the last turn (where the next request of a conversation still
    says the same, whatever the template then does with this one's answer), and every INTERVAL tokens between.
    """
    last = len(prompt) - 1
    ends = [place + 1 for place in range(last) if prompt[place] in turn_ends]
    wanted = {*ends[:1], *ends[-1:], *range(INTERVAL, last, INTERVAL)}
    chosen: list[int] = []
    for place in sorted(wanted):
        if place - (chosen[-1] if chosen else begun) >= SHORTEST:
            chosen.append(place)
    return chosen


def _layer(cache: KVCache | RecurrentCache, start: int, end: int) -> Arrays:
    if isinstance(cache, RecurrentCache):
        assert cache.conv is not None
        assert cache.state is not None
        return cache.conv, cache.state
    assert cache.keys is not None
    assert cache.values is not None
    return mx.contiguous(cache.keys[:, :, start:end]), mx.contiguous(cache.values[:, :, start:end])


def _joined(parts: list[Arrays]) -> tuple[mx.array, mx.array]:
    keys, values = zip(*parts, strict=True)
    return mx.concatenate(list(keys), axis=2), mx.concatenate(list(values), axis=2)


def _continues(prompt: Sequence[int], child: Node) -> bool:
    start = child.end - len(child.ids)
    return child.end < len(prompt) and tuple(prompt[start : child.end]) == child.ids


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
