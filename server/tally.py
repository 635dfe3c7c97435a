"""Figures that the engine's thread adds to and Prometheus reads: plain numbers, so that adding costs next to nothing.

prometheus-client's own counters take a lock for each addition and have no weighted observation; here only its form of
the result is used.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class Counter:
    """A count for each combination of labels. Made with the labels' names; each is added to by one thread."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    @property
    def values(self) -> dict[tuple[str, ...], float]:
        """The counts so far, by the labels' values."""
        return self._values.copy()

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in sorted(self.values.items()):
            family.add_metric(labels, value)
        return family


class Histogram:
    """How often values lay at or below each of `bounds`; added to by one thread."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._text)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family.add_metric((), list(zip(names, accumulate(map(float, self._counts)), strict=True)), self._sum)
        return family
