"""The nodes of a block once more, for another block: on its tensors, with memory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from ...torch_private import storage_of
from ..stand_ins import StandIns
from .histories import RepeatedBlock
from .record import Record, node_of

__all__ = ["Values", "copied", "returned"]


class Values:
    """Stand-ins for what the nodes of another block make, which share memory with each other as the first one's do.

    Args:
        record: the first block's run.
        given: what the other block is given, in the order of `record.given`.

    Attributes:
        of_nodes: what its nodes make.
        results: what it returns, by the identity of what the first one did.

    Raises:
        RuntimeError: what shares memory cannot be told of the first block's stand-ins.
    """

    def __init__(self, record: Record, given: Sequence[torch.Tensor]) -> None:
        first = record.call.tensors[0]
        assert isinstance(first, FakeTensor)
        self._mode: FakeTensorMode = first.fake_mode
        # By the memory of the first block's: one of its tensors there, and what corresponds to it.
        self._bases = {storage_of(old): (old, new) for old, new in zip(record.given, given, strict=True)}
        inner = {node for node in record.nodes if node.op != "get_attr"}
        for node in record.nodes:
            for outer in node.all_input_nodes:
                if outer not in inner and isinstance(value := outer.meta.get("val"), torch.Tensor):
                    self._bases.setdefault(storage_of(value), (value, value))
        self._stand_ins = StandIns()
        self.of_nodes: dict[fx.Node, Any] = {}
        guards = self._mode.shape_env
        with guards.suppress_guards() if guards is not None else contextlib.nullcontext():
            for node in record.nodes:
                if node.op == "get_attr":  # the same for every block
                    self._bases[storage_of(node.meta["val"])] = (node.meta["val"], node.meta["val"])
                else:
                    val = node.meta.get("val")
                    alone = isinstance(val, torch.Tensor)
                    self.of_nodes[node] = self._value(val) if alone else self._values(val)
            new = {id(r.value): r.value for r in record.results if r.node is not None}
            self.results = {place: self._value(old) for place, old in new.items()}

    def memory(self, old: int) -> int:
        """The memory in the place of one of the first block's."""
        base = self._bases.get(old)
        return old if base is None else storage_of(base[1])

    def _values(self, old: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self._value, old) if isinstance(old, (list, tuple)) else old

    def _value(self, old: Any) -> torch.Tensor:
        place = storage_of(old)
        base = self._bases.get(place)
        if base is None:
            made = self._stand_ins.like(old, None, self._mode, old.device)
            self._bases[place] = (old, made)
            return made
        was, now = base
        if _offset(was) == _offset(now):
            return self._stand_ins.like(old, now, self._mode, old.device)
        with in_kernel_invocation_manager(self._mode):
            was, now = (one.detach().view(old.dtype) if one.dtype != old.dtype else one.detach() for one in base)
            offset = now.storage_offset() + (old.storage_offset() - was.storage_offset())
            meta = now.as_strided(old.shape, old.stride(), offset)
        return FakeTensor(self._mode, meta, old.device)


def _offset(tensor: torch.Tensor) -> tuple[Any, torch.dtype]:
    """Where a tensor begins in its memory, without asking which number a symbol is."""
    offset: Any = tensor.storage_offset()
    return offset.node.expr if isinstance(offset, torch.SymInt) else offset, tensor.dtype


def copied(
    record: Record, given: Sequence[torch.Tensor], values: Values, tracer: Any, paths: Mapping[str, str]
) -> dict[fx.Node, fx.Node]:
    """Adds a block's nodes to a trace; returns them, by those of the first one.

    Args:
        record: the first block's run.
        given: what this one is given, in the order of `record.given`.
        values: stand-ins for what its nodes make.
        tracer: of the trace.
        paths: by the name of a module of the first block, that of this one's.
    """
    nodes: dict[fx.Node, fx.Node] = {}
    for here, new in zip(record.names, given, strict=True):
        there = node_of(new, tracer)
        if here is not None and there is not None:
            nodes[here] = there

    def other(node: fx.Node) -> fx.Node:
        return nodes.get(node, node)

    for node in record.nodes:
        if node.op == "get_attr":
            continue
        args, kwargs = fx.node.map_arg(node.args, other), fx.node.map_arg(node.kwargs, other)
        nodes[node] = made = tracer.graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = {**node.meta, "val": values.of_nodes[node], "nn_module_stack": _stack(node, paths)}
    return nodes


def returned(
    record: Record, given: Sequence[torch.Tensor], values: Values, nodes: Mapping[fx.Node, fx.Node], tracer: Any
) -> Any:
    """What a block returns whose nodes are these, known to the trace, and with the history of the first one's."""
    saved = [given[i] for i in record.saved]
    saved += [values.results[id(r.value)] for r in record.results if r.saved]
    made = RepeatedBlock.applied(record.history, list(values.results.values()), saved, given)
    done = dict(zip(values.results, made, strict=True))
    leaves = []
    for result in record.results:
        if result.node is not None:
            proxy = fx.Proxy(nodes[result.node], tracer)
            proxy_tensor.track_tensor_tree(done[id(result.value)], proxy, constant=None, tracer=tracer)
            leaves.append(done[id(result.value)])
        else:
            leaves.append(result.value if result.given is None else given[result.given])
    return pytree.tree_unflatten(leaves, record.spec)


def _stack(node: fx.Node, paths: Mapping[str, str]) -> dict[str, Any]:
    stack = node.meta.get("nn_module_stack") or {}
    return {key: (paths.get(path, path), kind) for key, (path, kind) in stack.items()}
