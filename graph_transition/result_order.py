"""Which outputs of a session are computed from which others, so that their gradients go the ways of eager's.

The trace has found it (capture/result_order.py), but for what wanted no gradient then. Such a session goes by the
graph, which may find a way where autograd has none: it carries nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence

import onnx

from ..capture import Captured, ResultOrder
from .info import FLOATING

__all__ = ["inner_views", "result_order"]


def result_order(captured: Captured, wanted: Sequence[str]) -> ResultOrder:
    """The order of the graph's outputs, by name, where the graph inputs `wanted` get a gradient."""
    if set(wanted) <= set(captured.hook_order):
        return captured.result_order
    return _by_graph(captured, wanted)


def inner_views(captured: Captured, order: ResultOrder) -> list[str]:
    """The results that are made as views of others, behind the graph, and that other results are computed from."""
    views = {ref.name for ref in captured.result_refs if ref.view is not None}
    return sorted({inner for _, inner in order.pairs if inner in views})


def _by_graph(captured: Captured, wanted: Sequence[str]) -> ResultOrder:
    graph = captured.model.graph
    results = [o.name for o in graph.output if o.type.tensor_type.elem_type in FLOATING]
    bit = {name: 1 << i for i, name in enumerate(results)}
    behind = dict.fromkeys(wanted, 0)  # by value that is computed from a wanted one, the results on the way, itself too
    order = ResultOrder()
    for node in graph.node:
        read = [behind[name] for name in _read(node) if name in behind]
        if not read:
            continue
        bits = functools.reduce(operator.or_, read)
        for name in node.output:
            behind[name] = bits | bit.get(name, 0)
            if name in bit:
                order.sequence.append(name)
                order.pairs.extend((name, inner) for inner in results if bits & bit[inner])
    return order


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, those in its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _read(inner)
