"""Drafts that the host makes without the head: tokens that the context makes likely. No mlx."""

from collections.abc import Sequence
from typing import Protocol

GRAM = 4  # tokens whose last occurrence is looked up
FIRST_MATCH, LAST_MATCH = 8, 32  # tokens that must match before a span is copied; more after each span that failed


class HostDrafter(Protocol):
    """Proposes what may come next for one row. A proposal may be anything: the accept rule decides.

    A row that has proposals is stepped without running ahead of it, since they depend on its last tokens.
    """

    @property
    def ready(self) -> bool:
        """Whether the next proposal is likely to be worth that."""

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens behind all that was taken in; empty where it has nothing to offer."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in tokens that the row made."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn how a proposal went."""


class CopyDrafter:
    """Prompt lookup (Saxena 2023): where the last tokens stood before, what followed them then is proposed.

    Edits, quotations and lists repeat long spans of their prompt, which a head of one layer foresees a few tokens at a
    time. It engages after a match of `FIRST_MATCH` tokens, and parks itself: each span of which less than half was
    accepted doubles the match that the next one needs.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._context = list(prompt)
        self._after: dict[tuple[int, ...], int] = {}  # place behind the last occurrence of GRAM tokens but the newest
        self._indexed = GRAM
        self._needed = FIRST_MATCH
        self._index()

    @property
    def ready(self) -> bool:
        return self._source() is not None

    def propose(self, most: int) -> list[int]:
        source = self._source()
        if source is None:
            return []
        tokens = self._context[source : source + most]
        period = len(tokens)  # a source that reaches the end goes on with what it proposes
        return [tokens[place % period] for place in range(most)]

    def extend(self, tokens: Sequence[int]) -> None:
        self._context += tokens
        self._index()

    def observe(self, drafted: int, accepted: int) -> None:
        if 2 * accepted < drafted:
            self._needed = min(2 * self._needed, LAST_MATCH)
        else:
            self._needed = max(self._needed // 2, FIRST_MATCH)

    def _index(self) -> None:
        """Remember each run of GRAM tokens that has a token behind it."""
        for end in range(self._indexed, len(self._context)):
            self._after[tuple(self._context[end - GRAM : end])] = end
        self._indexed = max(self._indexed, len(self._context))

    def _source(self) -> int | None:
        """Where the context goes on as it may now, or None where too little matches."""
        source = self._after.get(tuple(self._context[-GRAM:]))
        return source if source is not None and self._match(source) >= self._needed else None

    def _match(self, source: int) -> int:
        """How many tokens in front of `source` are those at the context's end, up to LAST_MATCH."""
        most = min(LAST_MATCH, source)
        end = len(self._context)
        return next((n for n in range(most) if self._context[source - 1 - n] != self._context[end - 1 - n]), most)
