"""Branches on what inputs and buffers hold: `if mask.any():`, `if x.sum() > 0:`, `for i in range(lengths.max()):`.

An export does not know which way such a branch goes. Where the question is a small computation on the call's tensors
and the module's buffers, or on the module's parameters and buffers, the trace asks the real ones and goes on with the
answer. The question is kept as a program of its own (predicates.py): a later call asks it again, and the graph holds
for that call only if the answer is the same.

A question that looks at activations (inputs and parameters) or at random numbers is none of these: to ask it is to run
the model. But where one answer only leads to a `raise` (`if (var < 0).any(): raise ValueError`, the arguments of a
distribution), the trace goes on with the other, and the graph expects it: a run in which the answer is not the expected
one ends, and the forward runs in PyTorch, where it raises what it raises.

Not here: what calls `answer` and `number` while a forward is traced, and where a branch leads
(patches/questions/inputs.py); who asks at each call (guards.py, the manager).
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr
from sympy.logic.boolalg import Boolean
from torch.fx import Node

from .. import torch_private
from .predicates import is_floating, nodes_behind, program_of

__all__ = ["Branch", "Branches"]

_MOST_QUESTIONS = 24  # of one graph: they are asked at each call, and more hardly ever have the same answers again

Place = int | tuple[torch.nn.Module, str]


@dataclasses.dataclass(frozen=True)
class Branch:
    """One question and its answer.

    Attributes:
        question: called with the tensors that it looks at; a truth value, or the number that the forward goes on with.
        places: these tensors, each by its place among the program's inputs, or as (module, name) of one of its own.
        answer: what it was in the call that was captured.
        line: where the forward asks, as `path:12: code`.
    """

    question: Callable[..., float]
    places: tuple[Place, ...]
    answer: float
    line: str | None

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the answer is the same for a call with these inputs; not where the question fails for them."""
        try:
            return _bits(_ask(self.question, [self._at(place, tensors) for place in self.places])) == _bits(self.answer)
        except (RuntimeError, IndexError, ValueError, KeyError, ArithmeticError):
            return False

    @staticmethod
    def _at(place: Place, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if isinstance(place, int):
            return tensors[place]
        module, name = place
        return (module._buffers if name in module._buffers else module._parameters)[name]  # type: ignore[return-value]


def _ask(question: Callable[..., float], tensors: Sequence[torch.Tensor]) -> float:
    with torch.no_grad():
        return question(*tensors)


def _bits(number: float) -> int | bytes:
    """What tells numbers apart: zeros of two signs are two, NaN is one."""
    return struct.pack("d", number) if isinstance(number, float) else number


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
        self._asked: dict[Any, Branch | None] = {}  # by node, or by expression over sizes and numbers
        self._tracer: Any = None

    @property
    def asked(self) -> list[Branch]:
        """The questions so far, in order."""
        return [one for one in self._asked.values() if one is not None]

    @property
    def count(self) -> int:
        """How many there were, those without an answer included."""
        return len(self._asked)

    def begin(self, traced: Sequence[torch.Tensor]) -> None:
        """Called by the traced forward with its own input tensors."""
        self._asked.clear()
        self._tracer = torch_private.running_tracer()
        given: list[tuple[torch.Tensor, Place, torch.Tensor]] = [
            (dict(_tensors_of(holder)).get(name, real), (holder, name), real) for holder, name, real in self._own
        ]
        given += [(one, i, self._tensors[i]) for i, one in enumerate(traced)]
        nodes = [(torch_private.traced_node(one), place, real) for one, place, real in given]
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
        node = torch_private.traced_node(traced)
        if node is None or traced.numel() != 1:
            return None
        if node not in self._asked:
            needed, inputs = self._behind([node])
            if not all(isinstance(self._place(one), int) and not is_floating(one) for one in inputs):
                # Values that differ from step to step: the graph looks at them cheaper than a question beside it.
                expected = _expect(traced, harmless(), line)
                if expected is not None:
                    return expected
            program = self._program([node], needed, inputs)
            if program is None:
                return _expect(traced, harmless(), line)
            self._asked[node] = self._ask_now(lambda *given: bool(program(*given)[0]), inputs, line)
        answered = self._answered(node)
        return None if answered is None else bool(answered)

    def number(self, expression: Any, line: Callable[[], str | None]) -> float | None:
        """The truth or the value of an expression that has data-dependent numbers in it; None: not to be asked.

        Integers of inputs are lengths and counts, which come again. Floating numbers are other ones in each call, but
        for those that the module keeps in its buffers: settings, and tables of them.

        Args:
            expression: over the trace's symbols for sizes and numbers.
            line: where the forward asks.
        """
        if expression not in self._asked:
            self._asked[expression] = self._asked_number(expression, line)
        return self._answered(expression)

    def _asked_number(self, expression: Any, line: Callable[[], str | None]) -> Branch | None:
        truth = isinstance(expression, Boolean) and not isinstance(expression, Expr)  # a symbol is both
        found = {symbol: self._definition(symbol) for symbol in expression.free_symbols}
        definitions = {symbol: one for symbol, one in found.items() if one is not None}
        if len(definitions) < len(found):
            return None
        nodes = list(dict.fromkeys(node for node, _ in definitions.values()))
        needed, inputs = self._behind(nodes)
        whole = truth or expression.is_integer
        program = self._program(nodes, needed, inputs) if whole or all(map(self._is_buffer, inputs)) else None
        if program is None:
            return None
        places = {symbol: (nodes.index(node), read) for symbol, (node, read) in definitions.items()}

        def value(*given: torch.Tensor) -> float:
            values = program(*given)
            result = torch_private.value_of(
                expression, {symbol: read(values[i]) for symbol, (i, read) in places.items()}
            )
            return bool(result) if truth else int(result) if whole else float(result)

        branch = self._ask_now(value, inputs, line)
        # The trace's arithmetic on symbols has one zero, and no numbers beyond the finite ones.
        expressible = branch is None or whole or (math.isfinite(branch.answer) and _bits(branch.answer) != _bits(-0.0))
        return branch if expressible else None

    def _definition(self, symbol: Any) -> tuple[Node, Callable[[Any], Any]] | None:
        """Where a symbol of the trace comes from: a node, and what finds the number in the node's value."""
        for node, (_, real) in self._inputs.items():
            for axis, size in enumerate(node.meta["val"].shape if real.dim() else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                    return node, lambda tensor, axis=axis: tensor.shape[axis]
        for node in self._tracer.graph.nodes:
            defined = torch_private.defined_symbols(node)
            if symbol in defined:
                mask = _counted(node)
                return (node, defined[symbol]) if mask is None else (mask, lambda tensor: int(tensor.count_nonzero()))
        return None

    def _answered(self, key: Any) -> float | None:
        branch = self._asked[key]
        return None if branch is None else branch.answer

    def _ask_now(
        self, question: Callable[..., float], inputs: Sequence[Node], line: Callable[[], str | None]
    ) -> Branch | None:
        if len(self.asked) >= _MOST_QUESTIONS:
            return None
        with torch_private.outside_the_trace():
            answer = _ask(question, [self._inputs[one][1] for one in inputs])
        return Branch(question, tuple(self._inputs[one][0] for one in inputs), answer, line())

    def _place(self, node: Node) -> Place | None:
        return self._inputs[node][0] if node in self._inputs else None

    def _is_buffer(self, node: Node) -> bool:
        place = self._place(node)
        return isinstance(place, tuple) and place[1] in place[0]._buffers

    @staticmethod
    def _behind(targets: Sequence[Node]) -> tuple[set[Node], list[Node]]:
        needed = nodes_behind(targets)
        return needed, [one for one in needed if one.op == "placeholder"]

    def _program(self, targets: list[Node], needed: set[Node], inputs: list[Node]) -> Callable[..., Any] | None:
        """What computes `targets` from `inputs`; None where that is to run the model, or something else has a part."""
        places = [self._place(one) for one in inputs]
        of_module = [place for place in places if isinstance(place, tuple)]
        if any(name in holder._parameters for holder, name in of_module) and len(of_module) < len(places):
            return None
        if None in places:
            return None
        return program_of(self._tracer, targets, needed, inputs)


def _counted(node: Node) -> Node | None:
    """The tensor whose true elements are as many as the number that a node brings in: it may be simple to compute where
    the node's other arguments are activations (`scores[~torch.eye(n, dtype=torch.bool)]`).
    """
    if node.target is torch.ops.aten.nonzero.default:
        return node.args[0]  # type: ignore[return-value]
    if node.target is not torch.ops.aten.index.Tensor:
        return None
    indices: Any = node.args[1]
    given = [one for one in indices if one is not None]
    return given[0] if len(given) == 1 and given[0].meta["val"].dtype == torch.bool else None


def _tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    own = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in own if tensor is not None]


def _expect(traced: torch.Tensor, expected: bool | None, line: Callable[[], str | None]) -> bool | None:
    """Has the trace expect an answer, which is returned."""
    if expected is not None:
        holds = traced.detach() if expected else traced.detach().logical_not()
        torch._assert_async(holds, line() or "a question about data")
    return expected
