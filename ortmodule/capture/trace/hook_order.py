"""In which order eager's backward comes to the leaves of a forward, and with it calls the hooks on their gradients.

Known from the traced forward, which autograd recorded on stand-ins for the tensors: its nodes are walked as torch's
engine would run them, the latest first and leaves before all others. The engine's queue is a binary heap, so that of
leaves that are ready together the heap's own order counts.

Not here: how the gradients of a graph are handed on in that order (csrc/autograd/module_backward.h).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from .repeats.histories import followed_by, order_of, step_behind

__all__ = ["leaves_in_hook_order"]


def leaves_in_hook_order(results: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves that a backward of all `results` reaches; none where they have no history."""
    behind = [step_behind(t) for t in results if isinstance(t, torch.Tensor)]
    roots = [step for step, _ in filter(None, behind)]
    waiting, held = _edges_into(roots)
    queue: list[tuple[Any, Any]] = []
    leaves: list[torch.Tensor] = []

    def arrive(node: Any) -> None:
        waiting[node] -= 1
        if waiting[node] == 0:
            _push(queue, (order_of(node), node))

    for root in roots:
        arrive(root)
    while queue:
        node = _pop(queue)[1]
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        for after in held[node]:
            arrive(after)
    return leaves


def _edges_into(roots: list[Any]) -> tuple[Counter[Any], dict[Any, list[Any]]]:
    """How many edges lead to each node that is reached, and the nodes behind it, which are kept alive thereby."""
    into: Counter[Any] = Counter(roots)
    after: dict[Any, list[Any]] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in after:
            continue
        after[node] = [one for one, _ in followed_by(node)]
        into.update(after[node])
        pending.extend(after[node])
    return into, after


# As std::push_heap and std::pop_heap move elements, equal ones too, which Python's heapq does otherwise.


def _push(heap: list[tuple[Any, Any]], item: tuple[Any, Any]) -> None:
    heap.append(item)
    _raise(heap, len(heap) - 1, item)


def _raise(heap: list[tuple[Any, Any]], place: int, item: tuple[Any, Any]) -> None:
    while place > 0 and heap[(place - 1) // 2][0] < item[0]:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = item


def _pop(heap: list[tuple[Any, Any]]) -> tuple[int, Any]:
    last = heap.pop()
    if not heap:
        return last
    first, hole, count = heap[0], 0, len(heap)
    while 2 * hole + 2 < count:
        child = 2 * hole + 2
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole], hole = heap[child], child
    if 2 * hole + 2 == count:
        heap[hole], hole = heap[2 * hole + 1], 2 * hole + 1
    _raise(heap, hole, last)
    return first
