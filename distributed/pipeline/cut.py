"""Where a graph is cut into stages: at places where little crosses, into parts that take about the same time.

Pure functions over numbers: what each node costs, what crosses before it, which stages may run it.
Not here: where these come from (dataflow.py), the stages' graphs (stage_graph.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

__all__ = ["cut_places"]

# What it is worth to hand on as much as crosses between two layers, once for each cut, in parts of a stage's work: an
# attention that is cut open hands on three times that, and is left whole unless a stage got 1.5 times as slow.
_CROSSING = 0.25


def cut_places(
    works: Sequence[float], crossing: Sequence[int], stages: int, allowed: Sequence[Sequence[bool]] | None = None
) -> list[int] | None:
    """The first node of each stage but the first.

    Args:
        works: of each node.
        crossing: bytes, before each node and after the last.
        stages: how many; each gets some work.
        allowed: by stage and node whether that stage may run it; None: all may.

    Returns:
        stages - 1 places, growing; None: there are no such places.

    The slowest stage's work over the mean plus `_CROSSING` times what is handed on, over what crosses between layers
    (the median of the places before and after which more crosses), is made small. For a number of limits to the slowest
    stage, the places that hand on least are found stage by stage.
    """
    nodes = len(works)
    if stages == 1:
        return []
    before = numpy.concatenate([[0.0], numpy.cumsum(numpy.asarray(works, dtype=numpy.float64))])
    bytes_ = numpy.asarray(crossing, dtype=numpy.float64)
    total = float(before[-1])
    few = _valleys(bytes_)
    inner = few[(before[few] > 0.1 * total) & (before[few] < 0.9 * total)]
    usual = max(float(numpy.median(bytes_[inner] if inner.size else bytes_)), 1.0)
    for places in (few, numpy.arange(nodes + 1)):
        places = numpy.unique(numpy.concatenate([[0], places, [nodes]]))
        found = _best(before, bytes_, places, stages, allowed, usual)
        if found is not None:
            return found
    return None


def _valleys(bytes_: numpy.ndarray) -> numpy.ndarray:
    """Places before and after which more crosses; the first of several beside one another that are alike."""
    starts = numpy.flatnonzero(numpy.diff(bytes_, prepend=-1.0))
    values = numpy.concatenate([[numpy.inf], bytes_[starts], [numpy.inf]])
    return starts[(values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])]


def _best(
    before: numpy.ndarray, bytes_: numpy.ndarray, places: numpy.ndarray, stages: int,
    allowed: Sequence[Sequence[bool]] | None, usual: float,
) -> list[int] | None:  # fmt: skip
    at = before[places]
    part = at[None, :] - at[:, None]  # [i, j]: the work from place i to place j
    mean, total = float(at[-1]) / stages, float(at[-1])
    forbidden = None
    if allowed is not None:
        missing = numpy.cumsum(numpy.concatenate([numpy.zeros((stages, 1)), ~numpy.asarray(allowed, bool)], 1), 1)
        missing = missing[:, places]
        forbidden = missing[:, None, :] - missing[:, :, None] > 0
    best, found, limit = float("inf"), None, mean
    while True:
        if limit / mean >= best:
            return found
        chosen = _least_crossing(part, bytes_[places], stages, limit, forbidden)
        if chosen is not None:
            cuts = [int(places[i]) for i in chosen]
            ends = before[[0, *cuts, len(before) - 1]]
            slowest = float(numpy.diff(ends).max())
            price = slowest / mean + _CROSSING * float(bytes_[cuts].sum()) / (stages - 1) / usual
            if price < best:
                best, found = price, cuts
        if limit >= total:
            return found
        limit = min(limit * 1.05, total)


def _least_crossing(
    part: numpy.ndarray, bytes_: numpy.ndarray, stages: int, limit: float, forbidden: numpy.ndarray | None
) -> list[int] | None:
    """The places (by number) with the least bytes, where no stage has more work than the limit."""
    fits = (part > 0) & (part <= limit * (1 + 1e-9))
    cost = numpy.full(len(bytes_), numpy.inf)
    cost[0] = 0.0
    ways = []
    for stage in range(stages):
        ok = fits if forbidden is None else fits & ~forbidden[stage]
        reach = numpy.where(ok, cost[:, None], numpy.inf)
        way = reach.argmin(0)
        cost = reach[way, numpy.arange(len(bytes_))] + (bytes_ if stage < stages - 1 else 0.0)
        ways.append(way)
    if not numpy.isfinite(cost[-1]):
        return None
    at, out = len(bytes_) - 1, []
    for way in reversed(ways[1:]):
        at = int(way[at])
        out.append(at)
    return out[::-1]
