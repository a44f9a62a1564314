"""Which results of a forward are computed from which others: `logits` from `features`.

In eager the way of a gradient leads through the inner one then, whose hooks see it. Known from the traced forward,
which autograd recorded.

Not here: how gradients are handed on in that order (csrc/autograd/result_nodes.h).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .trace.repeats.histories import followed_by, order_of, step_behind

__all__ = ["ResultOrder", "result_order"]


@dataclasses.dataclass(frozen=True)
class ResultOrder:
    """What autograd knows of several results.

    Attributes:
        pairs: a result and one that its history leads through, each.
        sequence: the results in the order in which their histories ended.
    """

    pairs: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    sequence: list[Any] = dataclasses.field(default_factory=list)

    def renamed(self, names: Mapping[Any, Any]) -> ResultOrder:
        """The same by other names, without what has none; two results of one name are one."""
        pairs = {(names[one], names[other]) for one, other in self.pairs if one in names and other in names}
        sequence = dict.fromkeys(names[one] for one in self.sequence if one in names)
        return ResultOrder(sorted(pair for pair in pairs if pair[0] != pair[1]), list(sequence))


def result_order(results: Sequence[Any]) -> ResultOrder:
    """The order of those that have a history, by their places."""
    at: dict[tuple[Any, int], int] = {}  # the results whose gradient arrives there, as bits
    for i, t in enumerate(results):
        edge = step_behind(t) if isinstance(t, torch.Tensor) else None
        if edge is not None:
            at[edge] = at.get(edge, 0) | 1 << i
    if len(at) < 2:
        return ResultOrder()
    behind = _results_behind([node for node, _ in at], at)
    pairs = []
    for (node, _), here in at.items():
        inner = _places(behind[node])
        pairs += [(i, j) for i in _places(here) for j in inner]
    last = sorted(at, key=lambda edge: (order_of(edge[0]), edge[1]))
    return ResultOrder(pairs, [i for edge in last for i in _places(at[edge])])


def _results_behind(roots: Sequence[Any], at: dict[tuple[Any, int], int]) -> dict[Any, int]:
    """By node that is reached, the results on the ways that lead on from it."""
    behind: dict[Any, int] = {}
    pending = list(roots)
    begun: dict[Any, list[tuple[Any, int]]] = {}
    while pending:
        node = pending[-1]
        if node in behind:
            pending.pop()
        elif node in begun:
            pending.pop()
            bits = 0
            for after, number in begun[node]:
                bits |= behind[after] | at.get((after, number), 0)
            behind[node] = bits
        else:
            begun[node] = followed_by(node)
            pending.extend(after for after, _ in begun[node] if after not in behind)
    return behind


def _places(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
