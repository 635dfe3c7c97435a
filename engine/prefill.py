"""Reading a prompt in chunks, trunk and head together, up to its last token."""

import mlx.core as mx

from engine.models.spec import SpecModel
from engine.penalties import Penalties
from engine.row import Row
from engine.rows import Backlog, Rows


class Prefill:
    """One row's prompt on its way into the caches.

    All but the last prompt token are read; that one becomes the pending token, so that the first step of the row is
    like any other. The head reads (hidden i, token i + 1) pairs along, its last pair is left as the backlog.
    """

    def __init__(self, spec: SpecModel, row: Row) -> None:
        self.row = row
        self.done = 0
        self.total = len(row.request.prompt) - 1
        self._spec = spec
        self._state = spec.new_state()
        self._state.read(True)
        self._last_hidden: mx.array | None = None

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def advance(self, most: int) -> None:
        """Read up to `most` more tokens and evaluate."""
        end = min(self.done + most, self.total)
        tokens = mx.array([self.row.request.prompt[self.done : end + 1]], dtype=mx.int32)
        hidden = self._spec.hidden(tokens[:, :-1], self._state)
        self._state.clock.advance_all(end - self.done)
        if self._spec.head is not None:
            self._read_head(tokens[:, 1:], hidden, is_last=end == self.total)
        self._last_hidden = hidden[:, -1:]
        mx.eval(self._last_hidden, self._state.arrays())
        self.done = end

    def _read_head(self, following: mx.array, hidden: mx.array, is_last: bool) -> None:
        pairs = following.shape[1] - is_last
        if pairs:
            self._spec.head_hidden(following[:, :pairs], hidden[:, :pairs], self._state)
            self._state.head_clock.advance_all(pairs)

    def rows(self) -> Rows:
        """The finished prompt as a batch of one row, ready for its first step."""
        self._state.read(False)
        last = mx.array([self.row.request.prompt[-1]], dtype=mx.int32)
        backlog = None
        if self._spec.head is not None:
            hidden = self._last_hidden
            fresh = 0 if hidden is None else 1
            if hidden is None:
                hidden = mx.zeros((1, 1, self._spec.hidden_size))
            backlog = Backlog(hidden, last[:, None], mx.array([fresh], dtype=mx.int32))
        request, vocab_size = self.row.request, self._spec.vocab_size
        penalties = Penalties.of(request.sampling, request.prompt, vocab_size)
        return Rows([self.row], self._state, last, backlog, penalties, vocab_size)
