"""Branches on what integer inputs hold: `if mask.any():`, `assert (ids >= 0).all()`.

An export does not know which way such a branch goes. Where the question is a small computation on the call's integer or
bool tensors alone, the trace asks the real ones and goes on with the answer. The question is kept as a program of its
own: a later call asks it again, and the graph holds for that call only if the answer is the same.

A question that looks at floating inputs, at the module's tensors or at random numbers is none of these: its answer
would turn at any step. But where one answer only leads to a `raise` (`if (var < 0).any(): raise ValueError`, the
arguments of a distribution), the trace goes on with the other, and the graph expects it: a run in which the answer is
not the expected one ends, and the forward runs in PyTorch, where it raises what it raises.

Not here: what calls `answer` while a forward is traced, and where a branch leads (compat.py, raises.py); who asks at
each call (guards.py, the manager).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import compat

__all__ = ["Branch", "Branches"]

_MOST_NODES = 256  # of one question; it is asked at each call
_SIZE_MODULES = ("_operator", "math")  # arithmetic on sizes
_DEVICES = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class Branch:
    """One question and its answer.

    Attributes:
        question: called with the program's input tensors in order; a tensor of one element.
        answer: what it was in the call that was captured.
        line: where the forward asks, as `path:12: code`.
    """

    question: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    answer: bool
    line: str | None

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the answer is the same for these tensors; not where the question fails for them."""
        try:
            return _ask(self.question, tensors) == self.answer
        except (RuntimeError, IndexError, ValueError):
            return False


def _ask(question: Callable[[Sequence[torch.Tensor]], torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    with torch.no_grad():
        return bool(question(tensors))


class Branches:
    """The questions of one trace.

    Args:
        tensors: the call's tensors, in the order of the program's inputs.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._places: dict[Node, int] = {}  # placeholders of the trace that may be looked at
        self._asked: dict[Node, Branch] = {}

    @property
    def asked(self) -> list[Branch]:
        """The questions so far, in order."""
        return list(self._asked.values())

    def begin(self, traced: Iterable[torch.Tensor]) -> None:
        """Called by the traced forward with its own input tensors."""
        self._asked.clear()
        nodes = [compat.traced_node(tensor) for tensor in traced]
        plain = [not t.is_floating_point() and not t.is_complex() for t in self._tensors]
        self._places = {node: i for i, node in enumerate(nodes) if node is not None and plain[i]}

    def answer(
        self, traced: torch.Tensor, line: Callable[[], str | None], harmless: Callable[[], bool | None]
    ) -> bool | None:
        """The truth of a traced tensor of one element; None where it is not to be asked.

        Args:
            traced: what the forward asks for.
            line: where it asks.
            harmless: the answer without which the forward raises; None where neither answer leads to a raise alone.
        """
        node = compat.traced_node(traced)
        if node is None or traced.numel() != 1:
            return None
        if node not in self._asked:
            question = self._question(node)
            if question is None:
                return _expect(traced, harmless(), line)
            with compat.outside_the_trace():
                answer = _ask(question, self._tensors)
            self._asked[node] = Branch(question, answer, line())
        return self._asked[node].answer

    def _question(self, node: Node) -> Callable[[Sequence[torch.Tensor]], torch.Tensor] | None:
        """What computes `node` from the input tensors; None where something else has a part in it."""
        needed = _with_writes(node)
        if len(needed) > _MOST_NODES:
            return None
        root = torch.nn.Module()
        for one in needed:
            constant = compat.traced_constant(one)
            if constant is not None:
                setattr(root, str(one.target), constant)
            elif one not in self._places if one.op == "placeholder" else not _is_repeatable(one):
                return None
        if any(torch.is_autocast_enabled(d) for d in _DEVICES) and any(_is_floating(one) for one in needed):
            return None
        graph = Graph()
        places = [self._places[one] for one in needed if one.op == "placeholder"]
        copies: dict[Node, Node] = {one: graph.placeholder(one.name) for one in needed if one.op == "placeholder"}
        written = {_storage(one) for writer in needed if _is_write(writer) for one in writer.all_input_nodes}
        for one in copies:
            if _storage(one) in written:  # the caller's own tensor, which the question must leave alone
                copies[one] = graph.call_function(torch.ops.aten.clone.default, (copies[one],))
        for one in node.graph.nodes:
            if one in needed and one.op != "placeholder":
                copies[one] = graph.node_copy(one, copies.__getitem__)
                copies[one].meta = {}  # it would keep the trace's tensors alive
        graph.output(copies[node])
        forward = GraphModule(root, graph).forward  # without the hooks of a module's call
        return lambda tensors: forward(*[tensors[i] for i in places])


def _expect(traced: torch.Tensor, expected: bool | None, line: Callable[[], str | None]) -> bool | None:
    """Has the trace expect an answer, which is returned."""
    if expected is not None:
        holds = traced.detach() if expected else traced.detach().logical_not()
        torch._assert_async(holds, line() or "a question about data")
    return expected


def _with_writes(node: Node) -> set[Node]:
    """`node`, all that it is computed from, and what the trace so far has written into any of these tensors."""
    found: set[Node] = set()
    waiting = [node]
    while waiting and len(found) <= _MOST_NODES:
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += one.all_input_nodes
        storages = {_storage(one) for one in found} - {None}
        for writer in node.graph.nodes:
            if writer not in found and _is_write(writer):
                if any(_storage(one) in storages for one in writer.all_input_nodes):
                    waiting.append(writer)
    return found


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
    return compat.storage_of(value) if isinstance(value, torch.Tensor) else None


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()
