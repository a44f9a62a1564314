"""From the values of a tensor, seen batch by batch, to the range that is worth a code of its own.

A collector sees arrays and gives a TensorRange. The methods and their defaults are those that users of ONNX runtimes
know: the ends themselves; the range whose quantised histogram differs least from the histogram in relative entropy
(Migacz, "8-bit inference with TensorRT", GTC 2017); percentiles of the histogram; mean and deviation.
Not here: where the values come from (calibration.py), and scales and zero points (static.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

__all__ = ["Distribution", "Entropy", "Histogram", "MinMax", "Percentile", "TensorRange"]

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class TensorRange:
    """What a tensor's values are between.

    Attributes:
        low, high: the ends; low <= high.
        mean, deviation: of the values, where the method finds them; else None.
    """

    low: float
    high: float
    mean: float | None = None
    deviation: float | None = None


class Collector(Protocol):
    """Sees a tensor's values and gives their range."""

    def see(self, values: Array) -> None: ...

    def result(self) -> TensorRange: ...


class MinMax:
    """The smallest and the largest value of all.

    Args:
        symmetric: both ends as far from zero as the further one.
    """

    def __init__(self, symmetric: bool = False) -> None:
        self.symmetric = symmetric
        self.low, self.high = np.inf, -np.inf

    def see(self, values: Array) -> None:
        if values.size:
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def result(self) -> TensorRange:
        return _mirrored(self.low, self.high) if self.symmetric else TensorRange(self.low, self.high)


class Histogram:
    """How often values fall into equal bins around zero, which become more when larger values come.

    Args:
        bins: how many there are at first; an even number, so that zero is an edge.
        absolute: of the values' sizes, from zero on.
    """

    def __init__(self, bins: int, absolute: bool = False) -> None:
        self.bins, self.absolute = bins, absolute
        self.counts: Array = np.zeros(0, np.int64)
        self.reach = 0.0  # the bins' outer edge
        self.low, self.high = np.inf, -np.inf

    def see(self, values: Array) -> None:
        flat = np.asarray(values, np.float32).ravel()
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        if self.absolute:
            flat = np.abs(flat)
        reach = float(np.abs(flat).max())
        if not self.counts.size:
            self.reach, self.counts = reach, np.zeros(self.bins, np.int64)
        elif reach > self.reach:
            self._grow(reach)
        found, _ = np.histogram(flat, len(self.counts), range=self._ends())
        self.counts = self.counts + found

    def _ends(self) -> tuple[float, float]:
        return (0.0 if self.absolute else -self.reach), self.reach

    def _grow(self, reach: float) -> None:
        """More bins of the same width; where all was zero so far, other bins, zero in the middle ones."""
        if self.reach == 0:
            zeros, self.reach = self.counts.sum(), reach
            self.counts = np.zeros(self.bins, np.int64)
            self.counts[0 if self.absolute else self.bins // 2] = zeros
            return
        width = (self.reach if self.absolute else 2 * self.reach) / len(self.counts)
        more = int((reach - self.reach) // width + 1)
        self.counts = np.pad(self.counts, (0 if self.absolute else more, more))
        self.reach += more * width

    @property
    def edges(self) -> Array:
        return np.linspace(*self._ends(), len(self.counts) + 1)

    def within(self, low: float, high: float) -> TensorRange:
        """A range, no wider than what was seen."""
        return TensorRange(*(float(np.clip(end, self.low, self.high)) for end in (low, high)))


class Percentile:
    """The range that holds a share of the values.

    Args:
        percentile: the share in percent; what is left out lies half beyond either end.
        bins: of the histogram.
        symmetric: the share of the values' sizes.
    """

    def __init__(self, percentile: float = 99.999, bins: int = 2048, symmetric: bool = False) -> None:
        self.percentile, self.symmetric = percentile, symmetric
        self.seen = Histogram(bins, absolute=symmetric)

    def see(self, values: Array) -> None:
        self.seen.see(values)

    def result(self) -> TensorRange:
        share = np.cumsum(self.seen.counts / max(self.seen.counts.sum(), 1))
        edges = self.seen.edges
        if self.symmetric:
            end = edges[np.searchsorted(share, self.percentile / 100)]
            return self.seen.within(-end, end)
        left_out = (100 - self.percentile) / 200
        return self.seen.within(edges[np.searchsorted(share, left_out)], edges[np.searchsorted(share, 1 - left_out)])


class Entropy:
    """The range around zero whose values, put into few bins, tell most of what the histogram tells.

    Args:
        bins: of the histogram.
        levels: how many bins the quantised values have.
        symmetric: both ends as far from zero as the further one.
    """

    def __init__(self, bins: int = 128, levels: int = 128, symmetric: bool = False) -> None:
        self.levels, self.symmetric = levels, symmetric
        self.seen = Histogram(bins)

    def see(self, values: Array) -> None:
        self.seen.see(values)

    def result(self) -> TensorRange:
        counts, edges = self.seen.counts, self.seen.edges
        middle = len(counts) // 2
        best = (np.inf, edges[0], edges[-1])
        for half in range(self.levels // 2, middle + 1):
            start, stop = middle - half, min(middle + half + 1, len(counts))
            lost = _lost_information(counts, start, stop, self.levels)
            if lost < best[0]:
                best = (lost, edges[start], edges[stop])
        found = self.seen.within(best[1], best[2])
        return _mirrored(found.low, found.high) if self.symmetric else found


def _lost_information(counts: Array, start: int, stop: int, levels: int) -> float:
    """The relative entropy of counts[start:stop], with what lies beyond at its ends, and of its form in `levels` bins.

    A level's bins get equal whole parts of what lies in it, as many as there are bins that are not empty; what does not
    divide into levels counts to the last one and gets none: as the stock onnxruntime package does, for equal ranges.
    """
    inside = counts[start:stop]
    whole = inside.copy()
    whole[0] += counts[:start].sum()
    whole[-1] += counts[stop:].sum()
    width = len(inside) // levels
    body = width * levels
    totals = inside[:body].reshape(levels, width).sum(axis=1)
    totals[-1] += inside[body:].sum()
    filled = (whole[:body] != 0).reshape(levels, width).sum(axis=1)
    shares = np.where(filled > 0, totals // np.maximum(filled, 1), 0)
    spread = np.pad(np.repeat(shares, width), (0, len(inside) - body))
    return _relative_entropy(_smoothed(whole), _smoothed(spread))


def _smoothed(counts: Array, little: float = 1e-4) -> Array | None:
    """No empty bin: a little for each, taken from the others; None where these have not enough."""
    empty = counts == 0
    if empty.all():
        return None
    taken = little * empty.sum() / (~empty).sum()
    if taken >= 1:
        return None
    return counts + np.where(empty, little, -taken)


def _relative_entropy(p: Array | None, q: Array | None) -> float:
    if p is None or q is None or (p <= 0).any() or (q <= 0).any():
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


class Distribution:
    """Mean and deviation of the values, and the histogram's ends as the range.

    Args:
        bins: of the histogram.
        scenario: "same": of the values; "p3": of their cube roots, for types whose steps grow with the number.
    """

    def __init__(self, bins: int = 2048, scenario: str = "same") -> None:
        if scenario not in ("same", "p3"):
            raise ValueError(f"the scenario should be 'same' or 'p3', got {scenario!r}")
        self.scenario = scenario
        self.seen = Histogram(bins)

    def see(self, values: Array) -> None:
        self.seen.see(values)

    def result(self) -> TensorRange:
        edges, counts = self.seen.edges, self.seen.counts
        centers = (edges[:-1] + edges[1:]) / 2
        if self.scenario == "p3":
            centers = np.cbrt(centers)
        total = max(counts.sum(), 1)
        mean = float((centers * counts).sum() / total)
        variance = float((centers**2 * counts).sum() / total) - mean**2
        return TensorRange(float(edges[0]), float(edges[-1]), mean, max(variance, 0.0) ** 0.5)


def _mirrored(low: float, high: float) -> TensorRange:
    end = max(abs(low), abs(high))
    return TensorRange(-end, end)
