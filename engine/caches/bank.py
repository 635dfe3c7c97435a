"""Prefixes of earlier prompts, kept in memory so that they are not read again.

A tree over token ids. A node ends at a checkpoint and holds what the model's caches gained since its parent: keys and
values of its own tokens (so conversations with one beginning share them), the recurrent layers' state at its end (it
can not be cut, so only checkpoints can be resumed from), the head's keys and values, and the last hidden, which the
head pairs with the token that follows. Nothing in a node is ever written to; a row that resumes gets copies.

Requests of different scopes share nothing: each scope has a tree of its own, and addresses of its own on disk.

With a disk behind it, each node is written there as well, and what has left memory, or the program before this one
kept, is found there by its address.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from engine.caches import address
from engine.caches.blobs import UnusableError
from engine.caches.disk import Disk, open_disk
from engine.caches.state import ModelState
from engine.caches.stretch import Arrays, Stretch
from engine.config import EngineConfig
from engine.events import CacheEvent
from engine.handle import ModelInfo

FLUSH_SECONDS = 1.5  # that ending the program may take for prefixes not yet on disk; the screen waits for 2
SHORTEST = 32  # tokens; a shorter stretch is read faster than it is kept, and a shorter prompt than it is looked up
LEAST = 1 / 20  # of a prompt; in a short one so much is kept although it is little, so that all but this is reused
INTERVAL = 2048  # tokens between checkpoints inside a long prompt
MOST_INTERVALS = 16


@dataclass(slots=True, eq=False)
class Node:
    """One stretch of tokens, from the end of its parent to a checkpoint.

    Attributes:
        key: the address of the prompt's beginning up to the checkpoint.
        end: tokens from the prompt's beginning to the checkpoint.
        held: what the caches gained since the parent.
    """

    key: str
    ids: tuple[int, ...]
    end: int
    parent: "Node | None"
    held: Stretch
    children: list["Node"] = field(default_factory=list)
    used: float = field(default_factory=time.monotonic)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.held.arrays())

    @property
    def root(self) -> "Node":
        """The empty prefix that it goes back to."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

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
    """How much of a prompt is here.

    Attributes:
        node: the deepest checkpoint on its way.
        tokens: that can be taken: up to the checkpoint, or up to a token inside of `part`, which follows it.
        reason: why it is not more, in words.
    """

    node: Node
    tokens: int
    part: Node | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A checkpoint on the way of a prompt; `node` is None where it is on disk alone."""

    key: str
    end: int
    node: Node | None
    before: "_Step | None" = None


class Bank:
    """The trees, with one limit on their bytes: the stretches that were not used for longest go first, ends before
    beginnings.

    Args:
        budget: bytes of memory.
        disk: where nodes are written to and looked for beside memory.

    Attributes:
        changed: whether something came or went since `told` was last called.
    """

    def __init__(self, budget: int, disk: Disk | None = None) -> None:
        self._budget = budget
        self._disk = disk
        self._roots: dict[str, Node] = {}
        self._evicted = 0
        self.changed = True

    def root(self, scope: str = "") -> Node:
        """The empty prefix, which every prompt of a scope goes on from."""
        if scope not in self._roots:
            key = address.scoped("" if self._disk is None else self._disk.root, scope)
            self._roots[scope] = Node(key, (), 0, None, Stretch([], [], None))
        return self._roots[scope]

    @property
    def nbytes(self) -> int:
        return sum(node.nbytes for node in self._nodes())

    def find(self, prompt: Sequence[int], anywhere: bool = False, scope: str = "") -> Found:
        """How much of a prompt is here, read from disk into memory where it is there alone.

        The last token is never looked up: it is the first step's to read. `anywhere`: the model can go on at any token
        and not at checkpoints alone, since it has no recurrent layer.
        """
        damage = None
        while True:
            try:
                node = self._reach(prompt, self._deepest(prompt, scope))
            except UnusableError as error:
                damage = damage or str(error)  # and the disk does not offer that file again
                continue
            part, shared = self._part(prompt, node) if anywhere else (None, 0)
            return Found(node, node.end + shared, part, damage or self._why(prompt, node))

    def known(self, prompt: Sequence[int], scope: str = "") -> int:
        """Tokens of a prompt that are here, so far as the index of the disk can tell: nothing is read from it."""
        return self._deepest(prompt, scope).end

    def ends(self, prompt: Sequence[int], scope: str = "") -> list[int]:
        """Where the deepest checkpoint on the way of a prompt lies and those before it, ascending; nothing is read."""
        step: _Step | None = self._deepest(prompt, scope)
        ends = []
        while step is not None and step.end:
            ends.append(step.end)
            step = step.before
        return ends[::-1]

    def deepest_here(self, ids: Sequence[int], scope: str = "") -> Node:
        """The deepest node in memory that lies in front of the last of these tokens; nothing is read from disk."""
        deepest = self.root(scope)
        pending = [deepest]
        while pending:
            node = pending.pop()
            deepest = max(deepest, node, key=lambda each: each.end)
            pending += [child for child in node.children if _continues(ids, child)]
        return deepest

    def _deepest(self, prompt: Sequence[int], scope: str) -> _Step:
        tokens, root = memoryview(address.packed(prompt[:-1])), self.root(scope)
        deepest = _Step(root.key, 0, root)
        pending = [deepest]
        while pending:
            step = pending.pop()
            if step.end > deepest.end:
                deepest = step
            children = [] if step.node is None else [node for node in step.node.children if _continues(prompt, node)]
            pending += [_Step(node.key, node.end, node, step) for node in children]
            if self._disk is not None:
                here = {node.key for node in children}
                further = self._disk.continuing(step.key, tokens, step.end)
                pending += [_Step(key, end, None, step) for key, end in further if key not in here]
        return deepest

    def _reach(self, prompt: Sequence[int], step: _Step) -> Node:
        """The node of a step, after those before it. Raises UnusableError where one can not be had from the disk."""
        steps: list[_Step] = []
        last: _Step | None = step
        while last is not None:
            steps.append(last)
            last = last.before
        first = steps.pop().node
        assert first is not None  # the root is always here
        node = first
        for step in steps[::-1]:
            if step.node is not None:
                node = step.node
            elif self._disk is not None:
                child = Node(step.key, tuple(prompt[node.end : step.end]), step.end, node, self._disk.load(step.key))
                node.children.append(child)
                node = child
                self.changed = True
            node.used = time.monotonic()
        if self._disk is not None and node is not first:
            self._disk.touch(node.key)
            self._shrink(node, self._budget)
        return node

    def _part(self, prompt: Sequence[int], node: Node) -> tuple[Node | None, int]:
        """What follows a node and begins as the prompt goes on, and how many tokens of it can be used.

        The last one that they share is left out: reading it anew gives its hidden, which the head pairs with the next.
        """
        rest = prompt[node.end : -1]
        part = max(node.children, key=lambda child: _shared(rest, child.ids), default=None)
        tokens = 0 if part is None else _shared(rest, part.ids) - 1
        if part is None or not worth_keeping(tokens, node.end + tokens):
            return None, 0
        part.used = time.monotonic()
        return part, tokens

    def _why(self, prompt: Sequence[int], node: Node) -> str:
        if not node.children:
            if node.parent is not None:
                return "everything cached on this way was used"
            return (None if self._disk is None else self._disk.why_nothing(node.key)) or "nothing cached yet"
        shared = max(_shared(prompt[node.end :], child.ids) for child in node.children)
        return f"no checkpoint further on: prompts part at token {node.end + shared}, after the last one at {node.end}"

    def add(self, parent: Node, ids: tuple[int, ...], held: Stretch) -> Node:
        """Keep what the caches of a row gained since `parent`; `ids` are the tokens of that.

        Gives the node, an older one where these tokens are here already.
        """
        known = next((child for child in parent.children if child.ids == ids), None)
        if known is not None:
            return known
        start, end = parent.end, parent.end + len(ids)
        mx.eval(held.arrays())
        key = address.after(parent.key, address.packed(ids))
        node = Node(key, ids, end, parent, held)
        parent.children.append(node)
        self.changed = True
        if self._disk is not None:
            self._disk.offer(key, parent.key, start, end, held, parent.root.key)
        self._shrink(node, self._budget)
        return node

    def restore(self, found: Found, state: ModelState) -> None:
        """Put what was found into the empty caches of one row that is going to read on.

        The head's rows are one behind, for want of the hidden's next token; not where a part of a node is taken, since
        that token is the one that both share.
        """
        node, part = found.node, found.part
        held = [step.held for step in node.path()]
        head_rows = found.tokens - 1
        if part is not None:
            head_rows = found.tokens
            begun = max(node.end - 1, 0)
            trunk = [_first(layer, found.tokens - node.end) for layer in part.held.trunk]
            held.append(Stretch(trunk, [_first(layer, head_rows - begun) for layer in part.held.head], None))
        for place, cache in enumerate(state.trunk):
            cache.put([stretch.trunk[place] for stretch in held])
        for place, head in enumerate(state.head):
            head.put([stretch.head[place] for stretch in held])
        state.clock.advance_all(found.tokens)
        state.head_clock.advance_all(head_rows if state.head else 0)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._roots = {}
        self.changed = True

    def erase(self) -> None:
        """Forget what is in memory and everything on disk, of whatever model and for every program that uses it."""
        self.clear()
        if self._disk is not None:
            self._disk.clear()

    def told(self) -> CacheEvent:
        """What is in memory now."""
        self.changed = False
        nodes = list(self._nodes())
        return CacheEvent(
            at=time.monotonic(),
            stretches=len(nodes),
            tokens=sum(len(node.ids) for node in nodes),
            nbytes=sum(node.nbytes for node in nodes),
            limit=self._budget,
            evicted=self._evicted,
            folder=None if self._disk is None else str(self._disk.folder),
        )

    def close(self, flush_s: float = FLUSH_SECONDS) -> None:
        """Write what the disk does not have yet, for so many seconds at most."""
        if self._disk is not None:
            self._disk.close(flush_s)
            self._disk = None

    def _nodes(self) -> Iterator[Node]:
        pending = [node for root in self._roots.values() for node in root.children]
        while pending:
            node = pending.pop()
            pending += node.children
            yield node

    def shrink_to(self, budget: int) -> None:
        """Forget what was used longest ago, until no more than `budget` bytes of memory are taken."""
        self._shrink(self.root(), budget)

    def _shrink(self, spare: Node, budget: int) -> None:
        kept = set(map(id, spare.path()))
        total = self.nbytes
        while total > budget:
            ends = [node for node in self._nodes() if not node.children and id(node) not in kept]
            if not ends:
                return
            oldest = min(ends, key=lambda node: node.used)
            assert oldest.parent is not None
            oldest.parent.children.remove(oldest)
            total -= oldest.nbytes
            self._evicted += 1
            self.changed = True


def open_bank(config: EngineConfig, info: ModelInfo) -> Bank | None:
    """The bank that a config asks for; None for none."""
    if not config.cache_bytes:
        return None
    if config.cache_folder is None:
        return Bank(config.cache_bytes)
    disk = open_disk(config.cache_folder, config.disk_bytes, info.name, lambda: address.root(info, config.kv_bits))
    return Bank(config.cache_bytes, disk)


def worth_keeping(tokens: int, end: int) -> bool:
    """Whether a checkpoint `end` tokens into a conversation, so many behind the one before it, pays."""
    return end >= SHORTEST and (tokens >= SHORTEST or tokens >= LEAST * end)


def checkpoints(
    prompt: Sequence[int], turn_ends: frozenset[int], begun: int, think_opens: int | None = None
) -> list[int]:
    """Where a prompt is worth a checkpoint behind its first `begun` tokens, ascending.

    After the first turn (system text and tools), after the last turn (where the next request of a conversation still
    says the same, whatever the template then does with this one's answer), where the answer is opened (before its
    thinking, which templates drop from later prompts), and every INTERVAL tokens between; in a long prompt every 2, 4,
    8 ... INTERVAL, since each holds a recurrent state (150 MB for a 27B hybrid). Those of prompts of any length lie on
    each other.
    """
    last = len(prompt) - 1
    interval = INTERVAL
    while last > MOST_INTERVALS * interval:
        interval *= 2
    ends = [place + 1 for place in range(last) if prompt[place] in turn_ends]
    opening = next((place for place in range(max([0, *ends]), last) if prompt[place] == think_opens), last)
    wanted = {*ends[:1], *ends[-1:], opening, *range(interval, last, interval)}
    chosen: list[int] = []
    for place in sorted(wanted):
        if worth_keeping(place - (chosen[-1] if chosen else begun), place):
            chosen.append(place)
    return chosen


def _first(layer: Arrays, tokens: int) -> Arrays:
    """The first tokens of what a KV cache cut."""
    return tuple(array[:, :, :tokens] for array in layer)


def _continues(prompt: Sequence[int], child: Node) -> bool:
    start = child.end - len(child.ids)
    return child.end < len(prompt) and tuple(prompt[start : child.end]) == child.ids


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
