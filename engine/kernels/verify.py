"""How to multiply the few rows of a verify step with weights, chosen from what was measured on this machine.

A verify step multiplies 2 to 9 rows with every weight, and some numbers of rows are much slower than others. On an H200
MLX's own 4-bit product of four rows takes 3.4 times as long as one of one row, and one of eight rows less than that.
OpenBLAS copies the whole weight before it multiplies, but for small products: on a Xeon [4, 320] x [320, 832] takes
0.26 ms, and 0.11 cut into eight. Every kind of product is timed here once, and then

- each goes the way that was fastest for its rows, where there is a choice (`use_fastest`);
- a step is made wider, with columns whose outcome nobody reads, where all of them together are faster so (`Widths`).

Two more ways were tried and are gone: padding to 16 rows was as fast as to 8, and dequantising was never the fastest.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.device import is_cpu
from engine.kernels import rows_cuda
from engine.kernels.timings import Timings

MOST_ROWS = 16  # up to here a product is a step's; longer blocks are prompts, for which MLX's kernels are made
DENSE = 16  # bits, as `rows_cuda` counts those of a dense weight
FULL = 8  # rows from which on MLX's quantised kernels are made for several
TOTALS = (4, 8, 12, 16)  # rows in all that a step may be widened to
CLOSE = 1.15  # of the fastest width's time: a narrower one is as good, and wastes less elsewhere
REPEATS, ROUNDS = 2, 3
STOCK = "stock"
SMALL_OUTPUTS, SMALL_PRODUCT = 1200, 1_000_000
"""Rows times outputs, and that times inputs, up to which OpenBLAS multiplies without a copy of the weight where it has
kernels for that (interface/gemm.c and kernel/x86_64/sgemm_small_kernel_permit_skylakex.c of 0.3.17 and later)."""

Way = Callable[[mx.array, Any], mx.array]
"""From x [M, K] and a linear layer [N, K] to [M, N]."""


def _stock(x: mx.array, layer: Any) -> mx.array:
    if "scales" not in layer:
        dense: mx.array = x @ layer.weight.T
        return dense
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
    bits, group, _ = _packing(layer)
    return rows_cuda.product(x, layer.weight, layer.get("scales"), layer.get("biases"), group, bits)


def _in_parts(x: mx.array, layer: Any) -> mx.array:
    rows, (outputs, columns) = x.shape[0], layer.weight.shape
    parts = layer.weight.reshape(small_parts(rows, outputs, columns), -1, columns)
    result: mx.array = (x @ parts.swapaxes(1, 2)).swapaxes(0, 1).reshape(rows, outputs)
    return result


@cache
def small_parts(rows: int, outputs: int, columns: int) -> int:
    """Into how many parts of as many outputs a weight [outputs, columns] is cut for OpenBLAS to take each for small."""
    most = min(SMALL_OUTPUTS // rows, SMALL_PRODUCT // (rows * columns))
    return next(parts for parts in range(1, outputs + 1) if outputs % parts == 0 and outputs // parts <= max(most, 1))


WAYS: dict[str, Way] = {
    STOCK: _stock,
    "padded": _padded,
    "in parts": _in_parts,
    "read once": _read_once,
}
TOLERANCE = {mx.float32: 1e-3, mx.float16: 4e-3, mx.bfloat16: 2e-2}
"""How far a way may be from MLX's own, of the largest output; another order of adding up gives a tenth of that."""


class Calibration:
    """Which way and which width are fastest; a kind of product is timed when it first comes up."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._ways: dict[tuple[str, int, mx.Dtype], Way] = {}

    def way(self, layer: Any, rows: int, dtype: mx.Dtype) -> Way:
        """The fastest way to multiply [rows, K] of a type with a quantised layer's weight."""
        known = (layer._kind, rows, dtype)
        way = self._ways.get(known)
        if way is None:
            seconds = self._seconds(layer, layer._kind, rows, dtype)
            way = self._ways[known] = WAYS[min(seconds, key=seconds.__getitem__)]
        return way

    def widths(self, modules: Iterable[nn.Module], dtype: mx.Dtype) -> "Widths":
        """The step widths that are fast for all products of the modules together."""
        named = [pair for module in modules for pair in module.named_modules()]
        layers = [layer for _, layer in named if isinstance(layer, nn.Linear | nn.QuantizedLinear)]
        counts = Counter(kind(layer) for layer in layers)
        examples = {kind(layer): layer for layer in layers}

        def seconds(rows: int) -> float:
            return sum(
                count * min(self._seconds(examples[name], name, rows, dtype).values()) for name, count in counts.items()
            )

        return Widths(cache(seconds))

    def _seconds(self, layer: Any, name: str, rows: int, dtype: mx.Dtype) -> dict[str, float]:
        return self._timings.get(f"{name}, {rows} rows of {dtype}", lambda: time_ways(layer, rows, dtype))


class Widths:
    """Chooses how many columns a step really runs.

    Args:
        seconds: what a step costs by its rows in all, each column of each row counted; None where all cost the same.
    """

    def __init__(self, seconds: Callable[[int], float] | None = None) -> None:
        self._seconds = seconds

    def __call__(self, rows: int, length: int) -> int:
        """Columns for a step of `rows` rows that needs `length` of them."""
        if self._seconds is None or rows * length == 1:
            return length
        wider = {-(-total // rows) for total in TOTALS if total > rows * length}
        costs = {width: self._seconds(rows * width) for width in (length, *sorted(wider))}
        return next(width for width, cost in costs.items() if cost <= CLOSE * min(costs.values()))


def kind(layer: Any) -> str:
    """What products of a linear layer have in common, in words."""
    size = f"{layer.weight.shape[0]}x{_columns(layer)}"
    if isinstance(layer, nn.QuantizedLinear):
        return f"{size}, {layer.bits} bits by {layer.group_size} {layer.mode}"
    return f"{size}, dense"


def _columns(layer: Any) -> int:
    """K of a weight [N, K], which a quantised one holds packed."""
    packed = isinstance(layer, nn.QuantizedLinear)
    return int(layer.scales.shape[1] * layer.group_size if packed else layer.weight.shape[1])


def time_ways(layer: Any, rows: int, dtype: mx.Dtype) -> dict[str, float]:
    """Seconds of each way that fits and gives what MLX's own gives."""
    x = mx.random.normal((rows, _columns(layer)), key=mx.random.key(rows)).astype(dtype)
    expected = _stock(x, layer)
    scale = mx.abs(expected).max().astype(mx.float32)
    seconds: dict[str, float] = {}
    for name in _candidates(layer, rows, dtype):
        error = mx.abs(WAYS[name](x, layer) - expected).max().astype(mx.float32) / scale
        if bool((error <= TOLERANCE[dtype]).item()):
            seconds[name] = _best_time(WAYS[name], x, layer)
    mx.clear_cache()  # outputs of a large vocabulary are not to stay in the allocator
    return seconds or {STOCK: _best_time(_stock, x, layer)}


def _candidates(layer: Any, rows: int, dtype: mx.Dtype) -> list[str]:
    """Ways to try. Where one gives a row the same whatever is beside it, no other: a draft's outcome may not depend on
    what is verified with it, and no other way was clearly faster."""
    bits, group, mode = _packing(layer)
    same = dtype == (layer.weight if bits == DENSE else layer.scales).dtype
    if same and rows <= rows_cuda.MOST_ROWS and rows_cuda.fits(_columns(layer), dtype, group, bits, mode):
        return ["read once"]
    names = [STOCK]
    if 1 < rows < FULL and bits < DENSE:
        names.append("padded")
    if is_cpu() and bits == DENSE and layer.weight.dtype == mx.float32 and small_parts(rows, *layer.weight.shape) > 1:
        names.append("in parts")
    return names


def _packing(layer: Any) -> tuple[int, int, str]:
    """(bits, group size, mode) of a layer's weight; a dense one has no groups."""
    return (layer.bits, layer.group_size, layer.mode) if "scales" in layer else (DENSE, 0, "dense")


def _best_time(way: Way, x: mx.array, layer: Any) -> float:
    mx.eval(way(x, layer))
    return min(_time(way, x, layer) for _ in range(ROUNDS))


def _time(way: Way, x: mx.array, layer: Any) -> float:
    begun = time.perf_counter()
    mx.eval([way(x, layer) for _ in range(REPEATS)])
    return (time.perf_counter() - begun) / REPEATS


class _Calibrated:
    """Mixed into a linear layer's class by `use_fastest`: few rows are multiplied by the fastest way.

    Rows of a batch are put one below the other: MLX takes [B, T, K] for B products of T rows.
    """

    _calibration: Calibration
    _kind: str

    def __call__(self: Any, x: mx.array) -> mx.array:
        rows = x.size // x.shape[-1]
        if rows > MOST_ROWS:
            result: mx.array = super().__call__(x)  # type: ignore[misc]  # of the class it is mixed into
            return result
        flat = self._calibration.way(self, rows, x.dtype)(x.reshape(rows, x.shape[-1]), self)
        result = flat.reshape(*x.shape[:-1], flat.shape[-1])
        return result + self.bias if "bias" in self else result


class CalibratedQuantized(_Calibrated, nn.QuantizedLinear):  # type: ignore[misc]  # mlx.nn has no types
    pass


class CalibratedDense(_Calibrated, nn.Linear):  # type: ignore[misc]
    pass


def use_fastest(module: nn.Module, calibration: Calibration) -> None:
    """Let every linear layer in a module, or the module itself, multiply by the fastest way; no parameter moves."""
    classes = {nn.QuantizedLinear: CalibratedQuantized, nn.Linear: CalibratedDense}
    for _, layer in module.named_modules():
        if type(layer) in classes:
            layer.__class__ = classes[type(layer)]
            layer._calibration, layer._kind = calibration, kind(layer)
