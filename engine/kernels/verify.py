"""How to multiply the few rows of a verify step with quantised weights, chosen from what was measured on this machine.

A verify step multiplies 2 to 9 rows with every weight. MLX's kernels for so few rows are made for one: on an H200 a
4-bit product of four rows took 3.4 times as long as one of one row, and one of eight rows less than that. Which widths
are fast differs from device to device, so every kind of product is timed here once, and then

- a step is made wider, with columns whose outcome nobody reads, where a wider one is faster (`Widths`);
- products that are not, such as those of the head's drafts, go the way that was fastest (`use_fastest`).

Two more ways were tried and are gone: padding to 16 rows was as fast as to 8, and dequantising was never the fastest.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.kernels import rows_cuda
from engine.kernels.timings import Timings

MOST_ROWS = 9  # a step of the deepest drafts; longer blocks are prompts, for which MLX's kernels are made
FULL = 8  # rows from which on MLX's kernels are made for several
REPEATS, ROUNDS = 8, 3
CLEAR_GAIN = 0.9  # of the time; less is noise, and not worth the columns
STOCK = "stock"

Way = Callable[[mx.array, Any], mx.array]
"""From x [M, K] and a quantised layer [N, K] to [M, N]."""


def _stock(x: mx.array, layer: Any) -> mx.array:
    product: mx.array = mx.quantized_matmul(
        x,
        layer.weight,
        scales=layer.scales,
        biases=layer.get("biases"),
        transpose=True,
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )
    return product


def _padded(x: mx.array, layer: Any) -> mx.array:
    return _stock(mx.pad(x, [(0, FULL - x.shape[0]), (0, 0)]), layer)[: x.shape[0]]


def _read_once(x: mx.array, layer: Any) -> mx.array:
    return rows_cuda.product(x, layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


WAYS: dict[str, Way] = {
    STOCK: _stock,
    "padded": _padded,
    "read once": _read_once,
}
TOLERANCE = {mx.float32: 1e-3, mx.float16: 4e-3, mx.bfloat16: 2e-2}
"""How far a way may be from MLX's own, of the largest output; another order of adding up gives a tenth of that."""


class Calibration:
    """Which way and which width are fastest; a kind of product is timed when it first comes up."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._ways: dict[tuple[int, int, int, int, str, int, mx.Dtype], Way] = {}

    def way(self, layer: Any, rows: int, dtype: mx.Dtype) -> Way:
        """The fastest way to multiply [rows, K] of a type with a quantised layer's weight."""
        outputs, columns = layer.weight.shape[0], layer.scales.shape[1] * layer.group_size
        kind = (outputs, columns, layer.bits, layer.group_size, layer.mode, rows, dtype)
        way = self._ways.get(kind)
        if way is None:
            seconds = self._seconds(layer, rows, dtype)
            way = self._ways[kind] = WAYS[min(seconds, key=seconds.__getitem__)]
        return way

    def widths(self, trunk: nn.Module, dtype: mx.Dtype) -> "Widths":
        """The step widths that are fast for all of a trunk's quantised products together."""
        layers = [layer for _, layer in trunk.named_modules() if isinstance(layer, nn.QuantizedLinear)]
        kinds = [(layer.weight.shape, layer.scales.shape, layer.bits, layer.mode) for layer in layers]
        examples = list(dict(zip(kinds, layers, strict=True)).items())
        counts = Counter(kinds)

        def seconds(rows: int) -> float:
            return sum(counts[kind] * self._seconds(layer, rows, dtype)[STOCK] for kind, layer in examples)

        return Widths(cache(seconds) if layers else None)

    def _seconds(self, layer: Any, rows: int, dtype: mx.Dtype) -> dict[str, float]:
        outputs, columns = layer.weight.shape[0], layer.scales.shape[1] * layer.group_size
        name = f"{outputs}x{columns}, {layer.bits} bits by {layer.group_size} {layer.mode}, {rows} rows of {dtype}"
        return self._timings.get(name, lambda: time_ways(layer, rows, columns, dtype))


class Widths:
    """Chooses how many columns a step really runs.

    Args:
        seconds: what a step costs by its rows in all, each column of each row counted; None where all cost the same.
    """

    def __init__(self, seconds: Callable[[int], float] | None = None) -> None:
        self._seconds = seconds

    def __call__(self, rows: int, length: int) -> int:
        """Columns for a step of `rows` rows that needs `length` of them."""
        if self._seconds is None or rows * length >= FULL or rows * length == 1:
            return length
        wider = -(-FULL // rows)
        return wider if self._seconds(rows * wider) < CLEAR_GAIN * self._seconds(rows * length) else length


def time_ways(layer: Any, rows: int, columns: int, dtype: mx.Dtype) -> dict[str, float]:
    """Seconds of each way that fits and gives what MLX's own gives."""
    x = mx.random.normal((rows, columns), key=mx.random.key(rows)).astype(dtype)
    expected = _stock(x, layer)
    scale = mx.abs(expected).max().astype(mx.float32)
    seconds: dict[str, float] = {}
    for name in _candidates(layer, rows, columns):
        error = mx.abs(WAYS[name](x, layer) - expected).max().astype(mx.float32) / scale
        if bool((error <= TOLERANCE[dtype]).item()):
            seconds[name] = min(_time(WAYS[name], x, layer) for _ in range(ROUNDS))
    mx.clear_cache()  # outputs of a large vocabulary are not to stay in the allocator
    return seconds


def _candidates(layer: Any, rows: int, columns: int) -> list[str]:
    names = [STOCK]
    if 1 < rows < FULL:
        names.append("padded")
    if rows <= MOST_ROWS and rows_cuda.fits(columns, layer.group_size, layer.bits, layer.mode):
        names.append("read once")
    return names


def _time(way: Way, x: mx.array, layer: Any) -> float:
    begun = time.perf_counter()
    mx.eval([way(x, layer) for _ in range(REPEATS)])
    return (time.perf_counter() - begun) / REPEATS


class CalibratedLinear(nn.QuantizedLinear):  # type: ignore[misc]  # mlx.nn has no types
    """A quantised linear layer that multiplies few rows by the fastest way. Made by `use_fastest`.

    Rows of a batch are put one below the other: MLX takes [B, T, K] for B products of T rows.
    """

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.size // x.shape[-1]
        if rows > MOST_ROWS:
            result: mx.array = super().__call__(x)
            return result
        calibration: Calibration = self._calibration
        flat = calibration.way(self, rows, x.dtype)(x.reshape(rows, x.shape[-1]), self)
        result = flat.reshape(*x.shape[:-1], flat.shape[-1])
        return result + self.bias if "bias" in self else result


def use_fastest(module: nn.Module, calibration: Calibration) -> None:
    """Let every quantised linear layer in a module (or the module itself) use it; no parameter moves."""
    for _, layer in module.named_modules():
        if type(layer) is nn.QuantizedLinear:
            layer.__class__ = CalibratedLinear
            layer._calibration = calibration
