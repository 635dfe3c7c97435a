"""Reading a prompt in chunks, trunk and head together, up to its last token."""

import mlx.core as mx

from engine.caches.bank import Bank, checkpoints
from engine.caches.recurrent import RecurrentCache
from engine.caches.stretch import Stretch
from engine.logprobs import Scores, score
from engine.models.spec import SpecModel
from engine.penalties import Penalties
from engine.readers import SHORTEST, Readers, read
from engine.row import Row
from engine.rows import Backlog, Rows

READ_AREA = 1 << 25
"""Tokens of a chunk times tokens that they see, at most. Where MLX has no fused attention (on the CPU always) it keeps
this many scores a head, 4 bytes each. Smaller chunks cost no time there: 200,000 tokens into a prompt, with 8 heads,
one of 160 took 46 ms a token and 1.1 GB, one of 512 took 62 ms and 3.4 GB."""


class Prefill:
    """One row's prompt on its way into the caches.

    All but the last prompt token are read; that one becomes the pending token, so that the first step of the row is
    like any other. The head is one pair behind the trunk: it reads (hidden i, token i + 1) once that token is read,
    and the last pair is left as the backlog. What the bank has of the prompt is not read again, and checkpoints are
    left there on the way.

    Attributes:
        done, total: prompt tokens in the caches, and those that have to be. cached: how many came from the bank.
        miss: why it was not more, in words.
    """

    def __init__(
        self,
        spec: SpecModel,
        row: Row,
        bank: Bank | None = None,
        turn_ends: frozenset[int] = frozenset(),
        think_opens: int | None = None,
        readers: Readers | None = None,
    ) -> None:
        prompt = row.request.prompt
        self.row = row
        self.total = len(prompt) - 1
        self._spec = spec
        self._bank = bank
        self._readers = readers
        self._state = spec.new_state()
        self._state.read(True)
        self._hidden: mx.array | None = None  # of the last token read, for the head to pair with the next
        self._stops: list[int] = []
        self.done = self.cached = 0
        self.miss = "the cache is off"
        if bank is not None:
            self._resume(bank, turn_ends, think_opens)

    def _resume(self, bank: Bank, turn_ends: frozenset[int], think_opens: int | None) -> None:
        prompt, scope = self.row.request.prompt, self.row.request.cache_scope
        if self.row.request.prompt_logprobs is not None:
            self._node = bank.root(scope)
            self.miss = "the prompt's log-probabilities were asked for, so all of it is read"
            ends = bank.ends(prompt, scope)  # on which it leaves its checkpoints, where others have left theirs
            self._stops = [*ends, *checkpoints(prompt, turn_ends, max(ends, default=0), think_opens)]
            return
        recurrent = any(isinstance(cache, RecurrentCache) for cache in self._state.trunk)
        found = bank.find(prompt, not recurrent, scope)
        self._node, self.miss = found.node, found.reason
        self.done = self.cached = found.tokens
        if self.done:
            bank.restore(found, self._state)
            self._hidden = found.node.held.hidden if found.part is None else None
        self._stops = checkpoints(prompt, turn_ends, self.done, think_opens)

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def advance(self, most: int) -> Scores | None:
        """Read up to `most` more tokens, no further than the next checkpoint, and evaluate.

        Deep in a long prompt it reads fewer than that, see READ_AREA. Gives the scores of the tokens that follow those
        that were read, where the request asked for log-probabilities of its prompt.

        Raises NumericalError where these can not be had, since a logit is not a finite number.
        """
        most = max(1, min(most, READ_AREA // (self.done + most)))
        end = min(self.done + most, self.total, *self._stops[:1])
        prompt, top = self.row.request.prompt, self.row.request.prompt_logprobs
        tokens = mx.array([prompt[self.done : end]], dtype=mx.int32)
        hidden = self._read(tokens)
        self._hidden = hidden[:, -1:]
        mx.eval(self._hidden, self._state.arrays())
        scores = None if top is None else score(self._spec, hidden, prompt[self.done + 1 : end + 1], top)
        self.done = end
        if self._stops[:1] == [end]:
            self._stops.pop(0)
            self._leave_checkpoint()
        return scores

    def _read(self, tokens: mx.array) -> mx.array:
        """Take [1, T] tokens into the caches: their hiddens, [1, T, H]."""
        if self._readers is not None and tokens.shape[1] >= SHORTEST:
            return self._readers.read(tokens, self._hidden, self._state)
        return read(self._spec, tokens, self._hidden, self._state)

    def _leave_checkpoint(self) -> None:
        assert self._bank is not None
        start, end = self._node.end, self.done
        held = Stretch(
            [cache.cut(start, end) for cache in self._state.trunk],
            [cache.cut(max(start - 1, 0), end - 1) for cache in self._state.head],
            None if self._spec.head is None or self._hidden is None else mx.contiguous(self._hidden),
        )
        self._node = self._bank.add(self._node, self.row.request.prompt[start:end], held)

    def rows(self) -> Rows:
        """The finished prompt as a batch of one row, ready for its first step."""
        self._state.read(False)
        last = mx.array([self.row.request.prompt[-1]], dtype=mx.int32)
        backlog = None
        if self._spec.head is not None:
            hidden = self._hidden
            fresh = 0 if hidden is None else 1
            if hidden is None:
                hidden = mx.zeros((1, 1, self._spec.hidden_size))
            backlog = Backlog(hidden, last[:, None], mx.array([fresh], dtype=mx.int32))
        request, vocab_size = self.row.request, self._spec.vocab_size
        penalties = Penalties.of(request.sampling, request.prompt, vocab_size)
        return Rows([self.row], self._state, last, backlog, penalties, vocab_size)
