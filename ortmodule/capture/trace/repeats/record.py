"""What the run of a block has recorded in a trace, and why it can or cannot stand for that of another one.

Not here: what the block's Python code has read (graph_transition/audit/blocks.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from ....errors import CaptureError
from ...rewrite.regions import is_write, written_argument
from ...torch_private import may_be_written, recompute_region, storage_of
from ...written_saved import saved_by
from .histories import History
from .pairing import equal_plain, form_of

__all__ = ["Begin", "Call", "Record", "Result", "node_of", "recorded"]


@dataclasses.dataclass
class Call:
    """What a block is called with.

    Attributes:
        leaves, spec: the arguments, flat.
        tensors: those of the leaves that are tensors.
    """

    leaves: list[Any]
    spec: pytree.TreeSpec
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> Call | None:
        """None where not all of it is tensors of the trace, sizes and plain values."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = (leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, torch.SymInt)))
        if not tensors or not all(map(_is_plain_tensor, tensors)) or not all(equal_plain(one, one) for one in others):
            return None
        return cls(leaves, spec, tensors)

    def is_same(self, other: Call | None) -> bool:
        """Whether another call has the very same tensors."""
        if other is None or self.spec != other.spec:
            return False
        return all(a is b or bool(equal_plain(a, b)) for a, b in zip(self.leaves, other.leaves, strict=True))

    def fits(self, other: Call) -> bool:
        """Whether it is like another call; which tensors are one and the same is not looked at here."""
        if self.spec != other.spec or len(self.leaves) != len(other.leaves):
            return False
        return all(map(_alike, self.leaves, other.leaves))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and form_of(one) == form_of(other)
    if isinstance(one, torch.SymInt):
        return isinstance(other, torch.SymInt) and one.node.expr == other.node.expr
    return bool(equal_plain(one, other))


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    return type(tensor) is FakeTensor and tensor.layout is torch.strided and not tensor._backward_hooks


@dataclasses.dataclass
class Result:
    """A leaf of a block's result.

    Attributes:
        value: what it was; a plain value is the same for every block.
        given: its place among the tensors that the block was given, where it is one of those.
        node: what has made it.
        saved: whether autograd has saved it.
    """

    value: Any
    given: int | None = None
    node: fx.Node | None = None
    saved: bool = False


@dataclasses.dataclass
class Record:
    """One run of a block.

    Attributes:
        call: what it was called with.
        given: the tensors of the call, then the block's own.
        forms: what they were like.
        names: the nodes by which the trace knew these before.
        nodes: what it has added to the trace, in order.
        results, spec: what it returned.
        history: what autograd has recorded.
        saved: places among `given` of what autograd has saved.
    """

    call: Call
    given: list[torch.Tensor]
    forms: list[Any]
    names: list[fx.Node | None]
    nodes: list[fx.Node]
    results: list[Result]
    spec: pytree.TreeSpec
    history: History
    saved: list[int]


def node_of(tensor: torch.Tensor, tracer: Any) -> fx.Node | None:
    """The node of a trace that has made a tensor."""
    slot: Any = proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return None if slot is None else slot.proxy.node


@dataclasses.dataclass
class Begin:
    """What a trace is like before a block runs.

    Attributes:
        call: what it is called with.
        given: the tensors of the call, then the block's own.
        names: the nodes by which the trace knows these: an operator that gives one back is its name from then on.
        last: the trace's last node.
        number: autograd's next.
        owned: what the block owns and is given, by its identity.
    """

    call: Call
    given: list[torch.Tensor]
    names: list[fx.Node | None]
    last: fx.Node
    number: int
    owned: dict[int, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def now(cls, call: Call, own: list[torch.Tensor], tracer: Any) -> Begin:
        given = list({id(tensor): tensor for tensor in (*call.tensors, *own)}.values())
        names = [node_of(tensor, tracer) for tensor in given]
        return cls(call, given, names, next(iter(reversed(tracer.graph.nodes))), torch._C._autograd._get_sequence_nr())


def recorded(begin: Begin, value: Any, tracer: Any) -> Record | None:
    """What can be repeated of a run that has just ended; None where not all of it can.

    Args:
        begin: what the trace was like before.
        value: what it returned.
        tracer: of the trace.
    """
    given, nodes = begin.given, list(_nodes_behind(begin.last))
    outer = {storage_of(tensor) for tensor in given}
    if not nodes or not all(_can_be_copied(node, tracer) for node in nodes):
        return None
    made = {node for node in nodes if node.op != "get_attr"}
    outer.update(map(storage_of, _values(one for node in nodes for one in node.all_input_nodes if one not in made)))
    for node in nodes:
        if is_write(node) and not outer.isdisjoint(map(storage_of, _values([written_argument(node)]))):
            return None
    leaves, spec = pytree.tree_flatten(value)
    results = [_result(leaf, given, made, outer, tracer) for leaf in leaves]
    tensors = list({id(r.value): r.value for r in results if r is not None and r.node is not None}.values())
    if None in results or len(set(map(storage_of, tensors))) != len(tensors) or not tensors:
        return None
    if _may_be_given(value):
        return None
    history = History(tensors, given, begin.number)
    if not history.whole:
        return None
    try:
        saved = saved_by(history.nodes)
    except CaptureError:
        return None
    known = [result for result in results if result is not None]
    for result in known:
        result.saved = result.node is not None and storage_of(result.value) in saved
    places = [i for i, tensor in enumerate(given) if storage_of(tensor) in saved]
    return Record(begin.call, given, list(map(form_of, given)), begin.names, nodes, known, spec, history, places)


def _nodes_behind(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _values(nodes: Any) -> Iterator[torch.Tensor]:
    for node in nodes:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        yield from (one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor))


def _can_be_copied(node: fx.Node, tracer: Any) -> bool:
    if node.op == "get_attr":
        return isinstance(getattr(tracer.root, str(node.target), None), torch.Tensor)
    if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if recompute_region(node.meta) is not None or node.meta.get("unbacked_bindings"):
        return False
    return all(type(value) is FakeTensor and value.layout is torch.strided for value in _values([node]))


def _result(
    leaf: Any, given: Sequence[torch.Tensor], made: set[fx.Node], outer: set[int], tracer: Any
) -> Result | None:
    if not isinstance(leaf, torch.Tensor):
        return Result(leaf) if equal_plain(leaf, leaf) else None
    place = next((i for i, tensor in enumerate(given) if tensor is leaf), None)
    if place is not None:
        return Result(leaf, place)
    slot: Any = proxy_tensor.get_proxy_slot(leaf, tracer, None) if _is_plain_tensor(leaf) else None
    if slot is None or slot.constant is not None or slot.proxy.node not in made or storage_of(leaf) in outer:
        return None
    if not may_be_written(leaf) or leaf.is_conj() or leaf.is_neg() or (leaf.grad_fn is not None) != leaf.requires_grad:
        return None
    return Result(leaf, None, slot.proxy.node)


def _may_be_given(value: Any) -> bool:
    """Whether a result is or has a container that may be one of the arguments: a tuple never changes."""
    outer = [value] if not isinstance(value, tuple) else value
    return any(isinstance(one, (list, dict)) for one in outer)
