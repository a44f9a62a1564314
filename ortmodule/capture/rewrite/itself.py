"""Operators that give their argument itself, always or where it lies in memory as they want it.

A trace takes the result for the argument from then on: after `y = x.type_as(w)` all uses of `x` are uses of `y`, and a
write into `x` goes to a node that looks like another tensor. Such nodes are taken out before anything asks who shares
memory with whom. What gives its argument or a copy by how that lies (`contiguous`, `reshape`) stays; where one of the
two is written later on, the strides of what the call is given are a condition of the graph (writes.reads_layouts).

Not here: results that are views (result_views.py).
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..torch_private import is_batched, storage_of

__all__ = ["BY_LAYOUT", "is_its_argument", "see_through"]

_ATEN = torch.ops.aten
# Whose result is the argument or has other values, type or device, whatever the strides are.
_ITSELF = {f"aten::{name}" for name in ("to", "type_as", "resolve_conj", "resolve_neg", "real", "conj", "positive")}
# Whose result is the argument, a view of it, or a copy, by the strides.
BY_LAYOUT = {f"aten::{name}" for name in ("contiguous", "reshape", "reshape_as", "flatten", "ravel")}


def see_through(module: GraphModule) -> None:
    """Puts the argument in the place of each node that gave it, in place, in the regions too."""
    for part in [m for m in module.modules() if isinstance(m, GraphModule)]:
        for node in list(part.graph.nodes):
            argument = _argument(node)
            if argument is not None and _is_same(node, argument):
                node.replace_all_uses_with(argument)
                part.graph.erase_node(node)


def is_its_argument(node: Node) -> bool:
    """Whether the trace got from this operator the very tensor that is its first argument."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.name not in _ITSELF | BY_LAYOUT:
        return False
    return isinstance(node.args[0], Node) and _is_same(node, node.args[0])


def _argument(node: Node) -> Node | None:
    """The argument that a node may be."""
    target: Any = node.target
    first: Any = node.args[0] if node.args else None
    if target is getitem and isinstance(first, Node) and first.target is _ATEN.broadcast_tensors.default:
        argument: Any = first.args[0][node.args[1]]  # type: ignore[index]
    elif isinstance(target, torch._ops.OpOverload) and target._schema.name in _ITSELF:
        argument = None if node.kwargs.get("memory_format") is not None else first
    else:
        argument = None
    return argument if isinstance(argument, Node) else None


def _is_same(node: Node, argument: Node) -> bool:
    result, given = node.meta.get("val"), argument.meta.get("val")
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    if is_batched(given) or is_batched(result):  # under vmap, without memory to ask for
        return False
    return (
        storage_of(given) == storage_of(result)
        and (given.dtype, given.device) == (result.dtype, result.device)
        and (given.shape, given.stride()) == (result.shape, result.stride())
        and given.is_conj() == result.is_conj()
    )
