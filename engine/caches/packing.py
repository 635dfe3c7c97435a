"""Keys and values in 8 or 4 bits, so that a machine holds a longer conversation.

The model with packed keys is another model than the one without, and that one is what drafts are held to: blocks of
any width, chunks of any length and plain decoding keep the same. What remains is rounding. Two ways to compute a key
differ in its last bits, and where it lies between two codes that tips it by a whole step, so packed states agree less
closely than others do.
"""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from engine.caches.groups import GROUPS, bits_a_value, group_of
from engine.errors import UnsupportedModelError

Packed = tuple[mx.array, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """MLX's affine quantisation along the head dimension: each token is packed alone, so what is kept of it does not
    depend on the chunk or block it came in.

    Attributes:
        group: values that share a scale and a bias.
        product: attention multiplies with packed keys and values (mlx-lm's own path); else they are unpacked for it.
            On a CPU unpacking wins: with 8,192 tokens, 8 query heads and a block of 4, 6.1 ms against 13.8 (4.2 for
            float32), for a prompt's chunk 0.45 s against 1.65, and it only ties at a block of 1. On a GPU decoding
            waits for memory, and packed products read half to a quarter of it.
    """

    bits: Literal[4, 8]
    group: int
    product: bool

    @classmethod
    def of(cls, bits: Literal[4, 8], width: int, *, product: bool) -> "Packing":
        """For attention heads of `width` values. Raises UnsupportedModelError where no group size divides it."""
        group = group_of(width)
        if group is None:
            raise UnsupportedModelError(
                f"This model's attention heads are {width} values wide, and keys and values are quantised in groups of "
                f"{' or '.join(map(str, GROUPS))}. Load it without quantised keys and values (no --kv-bits)."
            )
        return cls(bits, group, product)

    @property
    def step(self) -> float:
        """One code, as a share of the largest value in a group: what a tipped value is off by, at most."""
        return 2 / ((1 << self.bits) - 1)

    def share(self, dtype: mx.Dtype) -> float:
        """Bytes kept, as a share of those that `dtype` takes."""
        width: int = 8 * dtype.size
        return bits_a_value(self.bits, width, self.group) / width

    def pack(self, x: mx.array) -> Packed:
        """[..., D] -> packed values, scales and biases, each [..., *]."""
        return tuple(mx.quantize(x, group_size=self.group, bits=self.bits))

    def unpack(self, parts: Packed) -> mx.array:
        """What `pack` kept: [..., D]."""
        weights, scales, biases = parts
        return mx.dequantize(weights, scales, biases, group_size=self.group, bits=self.bits)
