"""Conv window and delta-rule state of a gated-delta layer, for a batch of rows."""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from engine.caches.clock import Clock
from engine.caches.merge import whole
from engine.kernels import delta, delta_cuda


class Replay(NamedTuple):
    """A block of tokens and the state in front of it, from which the state behind any number of them can be made.

    Attributes:
        conv, state: as in the cache, before the block.
        inputs: [B, kernel - 1 + T, channels], what the convolution saw; None where `fused` is there instead.
    """

    conv: mx.array
    state: mx.array
    inputs: mx.array | None
    block: delta.Block | None
    fused: tuple[delta_cuda.Projected, mx.array] | None

    def row(self, place: int) -> "Replay":
        """That of one row."""
        one = slice(place, place + 1)
        block = None if self.block is None else delta.Block(*(x[one] for x in self.block))
        fused = None if self.fused is None else (self.fused[0].row(place), self.fused[1][one])
        inputs = None if self.inputs is None else self.inputs[one]
        return Replay(self.conv[one], self.state[one], inputs, block, fused)

    def after(self, kept: mx.array) -> tuple[mx.array, mx.array]:
        """(conv, state) behind the first kept[b] tokens, at least one, of row b."""
        if self.fused is not None:
            return delta_cuda.commit(self.conv, self.state, *self.fused, kept)
        assert self.inputs is not None
        assert self.block is not None
        keep = self.conv.shape[1]
        rows = (kept[:, None] + mx.arange(keep))[..., None]
        return mx.take_along_axis(self.inputs, rows, axis=1), self.block.commit(self.state, kept)


class RecurrentCache:
    """The committed state, and the last block until it is accepted.

    Attributes:
        conv: [B, kernel - 1, channels], the inputs that the causal convolution still sees; None before the first.
        state: [B, H, Dv, Dk] float32; None before the first token.
        replay: the block that was accepted last; None while a prompt is read.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.conv: mx.array | None = None
        self.state: mx.array | None = None
        self.replay: Replay | None = None
        self._inputs: mx.array | None = None
        self._block: delta.Block | None = None
        self._fused: tuple[delta_cuda.Projected, mx.array] | None = None

    def make_mask(self, length: int) -> None:
        """No mask: padding does not occur, and refused tokens never enter the state."""

    def window(self, inputs: mx.array, kernel: int) -> mx.array:
        """The convolution's input for the next T tokens: [B, T, C] -> [B, kernel - 1 + T, C]."""
        if self.conv is None:
            self.conv = mx.zeros((inputs.shape[0], kernel - 1, inputs.shape[2]), dtype=inputs.dtype)
        window = mx.concatenate([self.conv, inputs], axis=1)
        if self.clock.reading:
            self.conv = mx.contiguous(window[:, window.shape[1] - (kernel - 1) :])
        else:
            self._inputs = window
        return window

    def scan(self, q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array) -> mx.array:
        """Outputs of the recurrence for the next T tokens; shapes as in `kernels.delta.read`."""
        if self.state is None:
            self.state = mx.zeros((v.shape[0], v.shape[2], v.shape[3], k.shape[3]), dtype=mx.float32)
        if self.clock.reading:
            y, self.state = delta.prefill(self.state, q, k, v, log_g, beta)
        else:
            y, self._block = delta.read(self.state, q, k, v, log_g, beta)
        return y

    def fuses(self, length: int) -> bool:
        """Whether a fused kernel can give the outputs of the next `length` tokens."""
        if self.clock.reading or self.conv is None or self.state is None:
            return False
        return delta_cuda.fits(self.state, length)

    def live(self, length: int) -> int:
        """How many columns of a block of `length` count."""
        return min(self.clock.live, length)

    def step(self, given: delta_cuda.Projected) -> mx.array | None:
        """Outputs for the next T tokens, from the layer's projections, where a fused kernel can give them."""
        length = given.block.shape[1]
        if not self.fuses(length):
            return None
        assert self.conv is not None
        assert self.state is not None
        y, u = delta_cuda.read(self.conv, self.state, given, self.live(length))
        self.hold(given, u)
        return y

    def hold(self, given: delta_cuda.Projected, u: mx.array) -> None:
        """Keep what `delta_cuda.read` was given and gave, until the block is accepted."""
        self._fused = (given, u)

    def accept(self, kept: mx.array) -> None:
        """Commit the first kept[b] tokens, at least one, of the last block in row b."""
        assert self.conv is not None
        assert self.state is not None
        self.replay = Replay(self.conv, self.state, self._inputs, self._block, self._fused)
        self._inputs = self._block = self._fused = None
        self.conv, self.state = self.replay.after(kept)

    def checkpoint(self) -> tuple[mx.array | None, mx.array | None]:
        """The committed state, to come back to."""
        return self.conv, self.state

    def restore(self, checkpoint: tuple[mx.array | None, mx.array | None]) -> None:
        """Forget everything since the checkpoint, the block that waits for acceptance included."""
        self.conv, self.state = checkpoint
        self._inputs = self._block = self._fused = self.replay = None

    def arrays(self) -> list[mx.array]:
        return [x for x in (self.conv, self.state) if x is not None]

    def cut(self, start: int, end: int) -> tuple[mx.array, ...]:
        """The committed state, for `put`: it can not be cut, so it is whole whatever the stretch, and right at its end
        alone."""
        assert self.conv is not None
        assert self.state is not None
        return self.conv, self.state

    def put(self, parts: Sequence[tuple[mx.array, ...]]) -> None:
        """Take the state that the last of consecutive cuts holds."""
        self.conv, self.state = parts[-1]

    def select(self, rows: mx.array, clock: Clock) -> "RecurrentCache":
        """A cache of some of the rows, in the order given."""
        picked = RecurrentCache(clock)
        if self.conv is not None and self.state is not None:
            picked.conv, picked.state = self.conv[rows], self.state[rows]
        return picked

    @staticmethod
    def merge(parts: "list[RecurrentCache]", clock: Clock) -> "RecurrentCache":
        """One cache with the rows of all parts."""
        merged = RecurrentCache(clock)
        for name in ("conv", "state"):
            arrays = whole([getattr(part, name) for part in parts], [part.clock for part in parts])
            if arrays:
                setattr(merged, name, mx.concatenate(arrays, axis=0))
        return merged
