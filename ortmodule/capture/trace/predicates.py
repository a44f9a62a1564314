"""The part of a trace that leads to a value, as a program of its own: what a branch asks, asked again at each call.

Here: which nodes of a running trace a value comes from, what the trace has written into them, whether all of it can be
repeated outside of the trace, and the program, whose operators run under the autocast that they were traced under. Not
here: which values are worth it, and what is done with the answer (branches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .. import torch_private
from ..autocast import AutocastState

__all__ = ["is_floating", "nodes_behind", "program_of"]

_MOST_NODES = 256  # of one question; it is asked at each call
_SIZE_MODULES = ("_operator", "math")  # arithmetic on sizes
_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def nodes_behind(targets: Iterable[Node]) -> set[Node]:
    """`targets`, all that they are computed from, and what the trace so far has written into any of these tensors."""
    found: set[Node] = set()
    waiting = list(targets)
    while waiting and len(found) <= _MOST_NODES:
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += one.all_input_nodes
        storages = {_storage(one) for one in found} - {None}
        for writer in next(iter(found)).graph.nodes:
            if writer not in found and _is_write(writer):
                if any(_storage(one) in storages for one in writer.all_input_nodes):
                    waiting.append(writer)
    return found


def program_of(
    tracer: Any, targets: Sequence[Node], needed: set[Node], inputs: Sequence[Node]
) -> Callable[..., Any] | None:
    """What computes the list of `targets` from `inputs`; None where it cannot be repeated outside of the trace.

    Args:
        tracer: of the trace.
        targets: the nodes whose values are wanted.
        needed: the nodes behind them.
        inputs: those among them for which the program is given tensors.
    """
    if len(needed) > _MOST_NODES:
        return None
    root = torch.nn.Module()
    for one in needed:
        constant = torch_private.traced_constant(tracer, one)
        if constant is not None:
            setattr(root, str(one.target), constant)
        elif one not in inputs and not _is_repeatable(one):
            return None
    graph = Graph()
    copies: dict[Node, Node] = {one: graph.placeholder(one.name) for one in inputs}
    written = {_storage(one) for writer in needed if _is_write(writer) for one in writer.all_input_nodes}
    for one in copies:
        if _storage(one) in written:  # the caller's own tensor, which the question must leave alone
            copies[one] = graph.call_function(torch.ops.aten.clone.default, (copies[one],))
    under_autocast = any(is_floating(one) for one in needed) and any(
        one.target is _ENTER for one in targets[0].graph.nodes
    )
    opened: list[Node] = []  # the trace's autocasts, outermost first
    last: AutocastState | None = None
    for one in targets[0].graph.nodes:
        if one.target is _ENTER:
            opened.append(one)
        elif one.target is _EXIT:
            opened.remove(one.args[0])
        elif one in needed and one not in inputs:
            autocast = AutocastState.inside([mode.args for mode in opened])
            if under_autocast and autocast != last:
                graph.call_function(autocast.set)
                last = autocast
            copies[one] = graph.node_copy(one, copies.__getitem__)
            copies[one].meta = {}  # it would keep the trace's tensors alive
    graph.output([copies[one] for one in targets])
    program = GraphModule(root, graph).forward  # without the hooks of a module's call
    return _leaving_autocast(program) if under_autocast else program


def _leaving_autocast(program: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: torch.Tensor) -> Any:
        with AutocastState.now().restored():
            return program(*given)

    return run


def is_floating(node: Node) -> bool:
    """Whether a node makes a floating tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_write(node: Node) -> bool:
    target: Any = node.target
    # `torch.tensor(1.0)` leaves a detach in place in the trace, which writes nothing.
    is_operator = isinstance(target, torch._ops.OpOverload) and target is not torch.ops.aten.detach_.default
    return is_operator and target._schema.is_mutable


def _is_repeatable(node: Node) -> bool:
    """Whether a node gives the same value for the same inputs, and does nothing else."""
    target: Any = node.target
    if node.op != "call_function":
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", None) in _SIZE_MODULES
    if target is torch.ops.aten.detach_.default:
        return True
    changes = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
    return target.namespace == "aten" and changes.isdisjoint(target.tags)


def _storage(node: Node) -> int | None:
    value = node.meta.get("val")
    return torch_private.storage_of(value) if isinstance(value, torch.Tensor) else None
