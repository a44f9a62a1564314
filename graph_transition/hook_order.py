"""In which order hooks hear of a session's gradients, as the places of the trainable inputs among themselves.

The trace has found it (capture/trace/hook_order.py), but for what wanted no gradient then. Such a session goes by the
graph: its nodes from the last to the first, each handing on to its inputs as eager's node for it would.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..capture import Captured

__all__ = ["hook_order"]

# Eager's addmm(bias, x, weight.t()): the bias, then x, and the weight behind one more node.
_EDGES = {"Linear": (2, 0, 1)}


def hook_order(captured: Captured, wanted: Sequence[str]) -> list[int]:
    """The places of `wanted`, those whose hooks are called first in front."""
    known = captured.hook_order
    if not set(wanted) <= set(known):
        known = _by_graph(captured)
    place = {name: i for i, name in enumerate(known)}
    return sorted(range(len(wanted)), key=lambda i: place.get(wanted[i], len(place)))


def _by_graph(captured: Captured) -> list[str]:
    """Every input, the last one that a node reads counting: a leaf is ready when its first use was differentiated."""
    order: dict[str, None] = {}
    for node in reversed(captured.model.graph.node):
        places = _EDGES.get(node.op_type, range(len(node.input)))
        for name in (node.input[i] for i in places if i < len(node.input)):
            order.pop(name, None)
            order[name] = None
    return list(order)
