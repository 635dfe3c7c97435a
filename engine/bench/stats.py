"""Repeated measurements in few numbers: medians and quartiles, since one interruption moves a mean."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """`values` measurements: their median, quartiles (q1 to q3 holds the middle half) and ends."""

    median: float
    q1: float
    q3: float
    min: float
    max: float
    values: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Of at least one value; quartiles are interpolated between values, as in numpy's default."""
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, q1, q3, min(values), max(values), len(values))

    @staticmethod
    def of_ratios(ones: Sequence[float], others: Sequence[float]) -> "Spread":
        """Of one over the other within each repeat, so that a slow minute of the machine meets both."""
        return Spread.of([one / other for one, other in zip(ones, others, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed; of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
