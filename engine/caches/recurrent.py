"""Conv window and delta-rule state of a gated-delta layer, for a batch of rows."""

from collections.abc import Sequence

import mlx.core as mx

from engine.caches.clock import Clock
from engine.caches.merge import whole
from engine.kernels import delta, delta_cuda


class RecurrentCache:
    """The committed state, and the last block until it is accepted.

    Attributes:
        conv: [B, kernel - 1, channels], the inputs that the causal convolution still sees; None before the first.
        state: [B, H, Dv, Dk] float32; None before the first token.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.conv: mx.array | None = None
        self.state: mx.array | None = None
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

    def step(self, given: delta_cuda.Projected) -> mx.array | None:
        """Outputs for the next T tokens, from the layer's projections, where a fused kernel can give them."""
        if self.clock.reading or self.conv is None or self.state is None:
            return None
        if not delta_cuda.fits(self.state, given.block.shape[1]):
            return None
        y, u = delta_cuda.read(self.conv, self.state, given, min(self.clock.live, given.block.shape[1]))
        self._fused = (given, u)
        return y

    def accept(self, kept: mx.array) -> None:
        """Commit the first kept[b] tokens, at least one, of the last block in row b."""
        assert self.conv is not None
        assert self.state is not None
        if self._fused is not None:
            self.conv, self.state = delta_cuda.commit(self.conv, self.state, *self._fused, kept)
            self._fused = None
            return
        assert self._inputs is not None
        assert self._block is not None
        keep = self.conv.shape[1]
        rows = (kept[:, None] + mx.arange(keep))[..., None]
        self.conv = mx.take_along_axis(self._inputs, rows, axis=1)
        self.state = self._block.commit(self.state, kept)
        self._inputs = self._block = None

    def checkpoint(self) -> tuple[mx.array | None, mx.array | None]:
        """The committed state, to come back to."""
        return self.conv, self.state

    def restore(self, checkpoint: tuple[mx.array | None, mx.array | None]) -> None:
        """Forget everything since the checkpoint, the block that waits for acceptance included."""
        self.conv, self.state = checkpoint
        self._inputs = self._block = self._fused = None

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
