"""Branches on what inputs and buffers hold: `if mask.any():`, `if x.sum() > 0:`, `if self.initialized == 0:`.

An export does not know which way such a branch goes. Where the question is a small computation on the call's tensors
and the module's buffers, or on the module's parameters and buffers, the trace asks the real ones and goes on with the
answer. The question is kept as a program of its own: a later call asks it again, and the graph holds for that call only
if the answer is the same.

A question that looks at activations (inputs and parameters) or at random numbers is none of these: to ask it is to run
the model. But where one answer only leads to a `raise` (`if (var < 0).any(): raise ValueError`, the arguments of a
distribution), the trace goes on with the other, and the graph expects it: a run in which the answer is not the expected
one ends, and the forward runs in PyTorch, where it raises what it raises.

Not here: what calls `answer` while a forward is traced, and where a branch leads (compat.py, raises.py); who asks at
each call (guards.py, the manager).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import compat

__all__ = ["Branch", "Branches"]

_MOST_NODES = 256  # of one question; it is asked at each call
_SIZE_MODULES = ("_operator", "math")  # arithmetic on sizes
_DEVICES = ("cpu", "cuda")

Place = int | tuple[torch.nn.Module, str]


@dataclasses.dataclass(frozen=True)
class Branch:
    """One question and its answer.

    Attributes:
        question: called with the tensors that it looks at; a tensor of one element.
        places: these tensors, each by its place among the program's inputs, or as (module, name) of one of its own.
        answer: what it was in the call that was captured.
        line: where the forward asks, as `path:12: code`.
    """

    question: Callable[..., torch.Tensor]
    places: tuple[Place, ...]
    answer: bool
    line: str | None

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the answer is the same for a call with these inputs; not where the question fails for them."""
        try:
            return _ask(self.question, [self._at(place, tensors) for place in self.places]) == self.answer
        except (RuntimeError, IndexError, ValueError, KeyError):
            return False

    @staticmethod
    def _at(place: Place, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if isinstance(place, int):
            return tensors[place]
        module, name = place
        return (module._buffers if name in module._buffers else module._parameters)[name]  # type: ignore[return-value]


def _ask(question: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    with torch.no_grad():
        return bool(question(*tensors))


class Branches:
    """The questions of one trace.

    Args:
        tensors: the call's tensors, in the order of the program's inputs.
        module: the module that is traced; its own tensors are read here, before the trace puts others in their place.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], module: torch.nn.Module) -> None:
        self._tensors = tensors
        self._own = [(holder, name, tensor) for holder in module.modules() for name, tensor in _tensors_of(holder)]
        self._inputs: dict[Node, tuple[Place, torch.Tensor]] = {}  # placeholders of the trace: what they stand for
        self._asked: dict[Node, Branch] = {}

    @property
    def asked(self) -> list[Branch]:
        """The questions so far, in order."""
        return list(self._asked.values())

    def begin(self, traced: Sequence[torch.Tensor]) -> None:
        """Called by the traced forward with its own input tensors."""
        self._asked.clear()
        given: list[tuple[torch.Tensor, Place, torch.Tensor]] = [
            (dict(_tensors_of(holder)).get(name, real), (holder, name), real) for holder, name, real in self._own
        ]
        given += [(one, i, self._tensors[i]) for i, one in enumerate(traced)]
        nodes = [(compat.traced_node(one), place, real) for one, place, real in given]
        self._inputs = {node: (place, real) for node, place, real in nodes if node is not None}

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
            needed = _with_writes(node)
            inputs = [one for one in needed if one.op == "placeholder"]
            if not all(isinstance(self._place(one), int) and not _is_floating(one) for one in inputs):
                # Values that differ from step to step: the graph looks at them cheaper than a question beside it.
                expected = _expect(traced, harmless(), line)
                if expected is not None:
                    return expected
            question = self._question(node, needed, inputs)
            if question is None:
                return _expect(traced, harmless(), line)
            with compat.outside_the_trace():
                answer = _ask(question, [self._inputs[one][1] for one in inputs])
            self._asked[node] = Branch(question, tuple(self._inputs[one][0] for one in inputs), answer, line())
        return self._asked[node].answer

    def _place(self, node: Node) -> Place | None:
        return self._inputs[node][0] if node in self._inputs else None

    def _question(self, node: Node, needed: set[Node], inputs: Sequence[Node]) -> Callable[..., torch.Tensor] | None:
        """What computes `node` from `inputs`; None where something else has a part in it."""
        if len(needed) > _MOST_NODES:
            return None
        places = [self._place(one) for one in inputs]
        of_module = [place for place in places if isinstance(place, tuple)]
        if any(name in holder._parameters for holder, name in of_module) and len(of_module) < len(places):
            return None
        root = torch.nn.Module()
        for one in needed:
            constant = compat.traced_constant(one)
            if constant is not None:
                setattr(root, str(one.target), constant)
            elif one not in self._inputs if one.op == "placeholder" else not _is_repeatable(one):
                return None
        if any(torch.is_autocast_enabled(d) for d in _DEVICES) and any(_is_floating(one) for one in needed):
            return None
        graph = Graph()
        copies: dict[Node, Node] = {one: graph.placeholder(one.name) for one in inputs}
        written = {_storage(one) for writer in needed if _is_write(writer) for one in writer.all_input_nodes}
        for one in copies:
            if _storage(one) in written:  # the caller's own tensor, which the question must leave alone
                copies[one] = graph.call_function(torch.ops.aten.clone.default, (copies[one],))
        for one in node.graph.nodes:
            if one in needed and one.op != "placeholder":
                copies[one] = graph.node_copy(one, copies.__getitem__)
                copies[one].meta = {}  # it would keep the trace's tensors alive
        graph.output(copies[node])
        return GraphModule(root, graph).forward  # without the hooks of a module's call


def _tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    own = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in own if tensor is not None]


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
