"""Writes that autograd does not see: under no_grad, or through `.detach()` and `.data`.

In torch such a write changes a tensor's values and leaves its history: a parameter that is clamped in place before its
use still gets its gradient, and it is the gradient at the new values. The written node is given that meaning here:
`x.op_(y)` becomes `x.with_value_(op(x.detach(), y.detach()))`, whose gradient is x's.

Not here: regions (regions.py), and which value a later reader sees (converter.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from ..source_lines import user_line_of
from ..torch_private import is_batched, storage_of
from .itself import BY_LAYOUT
from .regions import (
    MADE_WITHOUT_GRADIENT,
    WITHOUT_HISTORY,
    detached,
    functional_form,
    is_write,
    mutated_argument,
    written_argument,
)

__all__ = ["keep_histories", "reads_layouts", "refuse_kept_histories", "refuse_overlapping"]

_DETACH = torch.ops.aten.detach.default
_ALIASES = (_DETACH, torch.ops.aten.alias.default)  # the latter is a slice of the whole, which keeps the history
_DETACH_IN_PLACE = torch.ops.aten.detach_.default
_ENDS_A_HISTORY = "ends a history"
_WITH_VALUE = "ortmodule::with_value_"


def keep_histories(program: torch.export.ExportedProgram) -> None:
    """Rewrites, in place, every write without a history into a tensor that may have one."""
    module = program.graph_module
    graph = module.graph
    without = {*program.graph_signature.inputs_to_buffers, *program.graph_signature.inputs_to_lifted_tensor_constants}
    order = {node: i for i, node in enumerate(graph.nodes)}
    history: set[Node] = set()
    changed = False
    for node in list(graph.nodes):
        inherits = node.target is not _DETACH and MADE_WITHOUT_GRADIENT not in node.meta
        if (
            _starts_history(node)
            and node.name not in without
            or inherits
            and not history.isdisjoint(node.all_input_nodes)
        ):
            history.add(node)
        if node.op != "call_function" or not is_write(node) or mutated_argument(node.target) != 0:
            continue
        written = node.args[0]
        if node.target is _DETACH_IN_PLACE and written in history:
            node.meta[_ENDS_A_HISTORY] = True
        origin, through_detach = _origin(written)
        hidden = through_detach or (WITHOUT_HISTORY in node.meta and node.target is not _DETACH_IN_PLACE)
        if hidden and origin in history and functional_form(node.target) is not None:
            history.add(_rewritten(module, node, origin, through_detach, order))
            changed = True
    if changed:
        graph.lint()
        module.recompile()


def refuse_kept_histories(module: GraphModule) -> None:
    """Raises CaptureError where torch's functionalisation, which does not know them, would meet such writes, or a
    detach in place, which it takes for nothing.
    """
    for node in module.graph.nodes:
        if _ENDS_A_HISTORY in node.meta:
            text = "a tensor is detached in place in a forward whose writes torch has to resolve"
            raise CaptureError(text, user_line_of(node.meta.get("stack_trace")))
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name == _WITH_VALUE:
            text = "a tensor with a history is written without one, and read under another name afterwards"
            raise CaptureError(text, user_line_of(node.meta.get("stack_trace")))


def refuse_overlapping(module: GraphModule) -> None:
    """Raises CaptureError for a write into a tensor whose elements lie in one place (`expand`), which PyTorch refuses
    and a trace does not.
    """
    for node in module.graph.nodes:
        if node.op != "call_function" or not is_write(node):
            continue
        written = written_argument(node)
        value = written.meta.get("val") if isinstance(written, Node) else None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and _overlaps(value):
            text = "a tensor is written whose elements lie in one place"
            raise CaptureError(text, user_line_of(node.meta.get("stack_trace")))


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(
        isinstance(size, int) and size > 1 and isinstance(stride, int) and stride == 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def reads_layouts(module: GraphModule, uncopied: Iterable[int]) -> bool:
    """Whether a tensor is written that an operator before has copied or not, by how it lay in memory.

    Args:
        module: the trace, without regions.
        uncopied: memories that another layout would have copied, though no node says so.
    """
    doubtful = set(uncopied)
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if is_write(node):
            if not doubtful.isdisjoint(_memories((written_argument(node),))):
                return True
        elif node.target._schema.name in BY_LAYOUT or node.kwargs.get("memory_format") is not None:
            doubtful.update(_memories((node, *node.args[:1])))
    return False


def _memories(nodes: Iterable[Any]) -> set[int]:
    values = (node.meta.get("val") for node in nodes if isinstance(node, Node))
    tensors = (v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided)
    return {storage_of(tensor) for tensor in tensors if not is_batched(tensor)}


def _starts_history(node: Node) -> bool:
    """Parameters and inputs, whether or not they want a gradient at the moment: the graph serves both."""
    fake = node.meta.get("val")
    return node.op == "placeholder" and isinstance(fake, torch.Tensor) and fake.is_floating_point()


def _origin(node: Any) -> tuple[Node, bool]:
    """The tensor that `node` is another name of, and whether that name has no history."""
    without = False
    while node.op == "call_function" and node.target in _ALIASES:
        without = without or node.target is _DETACH
        node = node.args[0]
    return node, without


def _rewritten(module: GraphModule, node: Node, origin: Node, through_detach: bool, order: dict[Node, int]) -> Node:
    """`origin.with_value_(...)` in place of the write `node`."""
    graph = module.graph
    operator: Any = node.target
    functional: Any = functional_form(operator)
    alias: Any = node.args[0]
    with graph.inserting_before(node), torch.no_grad():
        operands = [detached(module, a) if isinstance(a, Node) else a for a in (origin, *node.args[1:])]
        value = graph.call_function(functional, tuple(operands), dict(node.kwargs))
        value.meta = {**node.meta, "val": node.meta["val"].clone()}
        new = graph.call_function(torch.ops.ortmodule.with_value_.default, (origin, value))
        new.meta = {**node.meta, "val": origin.meta["val"]}
        result = new
        if alias is not origin:  # the alias has the new values from here on, and a detached one still no history
            if through_detach:
                result = graph.call_function(_DETACH, (new,))
                result.meta = dict(alias.meta)
            for user in [u for u in alias.users if order.get(u, -1) > order[node]]:
                user.replace_input_with(alias, result)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return new
