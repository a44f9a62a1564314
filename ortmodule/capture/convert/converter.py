"""Walks an exported fx graph and writes it as an ONNX model.

Each node goes to the translator of its operator. Writes into tensors become new values here: a later reader of the
tensor sees the last one, and what was written into an input, buffer or parameter is an output of the graph.

Not here: what translators use (emitter.py), single operators (ops/), the ONNX writing (onnx_graph.py).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ...errors import CaptureError
from ..rewrite.regions import PART_VIEWS, functional_form, is_write
from ..sizes import SizePrinter
from ..source_lines import user_line_of
from ..torch_private import recompute_region
from . import aten_node, custom_node
from .emitter import Emitter
from .onnx_graph import GraphBuilder, Value
from .ops import TRANSLATORS

__all__ = ["Converter"]

_DROPPED = {"_assert_tensor_metadata", "_assert_scalar", "_functional_assert_scalar", "sym_constrain_range",
            "sym_constrain_range_for_size"}  # fmt: skip
_CONTIGUOUS = torch.ops.aten.contiguous.default
_COPIES = {torch.ops.aten.clone.default, torch.ops.aten.lift_fresh_copy.default}
_NUMBERS = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
_EXPECTED = {"_assert_async", "_functional_assert_async"}
_FLOAT_ARITHMETIC = {operator.add: "Add", operator.sub: "Sub", operator.mul: "Mul", operator.truediv: "Div",
                     operator.pow: "Pow", operator.neg: "Neg"}  # fmt: skip
_ALSO_COMPLEX = {"copy"}  # translators that know complex numbers; for the others an ATen node computes these
_MODULE_PREFIX = "module."


class Converter(Emitter):
    """One conversion. Feed `define` with the graph's inputs, then call `run`.

    Attributes:
        results: for each node that became operators: it, and what it became.
        apart: nodes whose tensors somebody may write after the forward: they are no others in the graph either.
    """

    def __init__(self, builder: GraphBuilder, printer: SizePrinter) -> None:
        super().__init__(builder, printer)
        self.results: list[tuple[Node, Any]] = []
        self.apart: frozenset[Node] = frozenset()

    def define(self, node: Node, value: Any, differentiable: bool = False) -> None:
        """Sets the value of a placeholder, of which a gradient may be asked or not."""
        self.values[node] = value
        if differentiable:
            self._history.add(node)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._devices.add(node.meta["val"].device)

    def run(self, graph: torch.fx.Graph) -> None:
        """Translates every node of `graph` in order."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._visit(node)
            elif node.op not in ("placeholder", "output"):
                raise CaptureError(f"the exported graph holds '{node.target}' ({node.op}), which has no ONNX form")

    def _visit(self, node: Node) -> None:
        target = node.target
        self.out = node.meta.get("val")
        if not self._history.isdisjoint(node.all_input_nodes) and _keeps_history(node):
            self._history |= {node, self.root(node.all_input_nodes[0])} if is_write(node) else {node}
        if target is operator.getitem:
            source, position = _arguments(node)
            self.values[node] = self.read(source)[position]
            return
        self._enter(node)
        if isinstance(self.out, torch.SymFloat):
            self.values[node] = self._symbolic_float(node)
        elif isinstance(self.out, (int, float, torch.SymInt, torch.SymBool)):
            self._bind_symbols(node)
            self.values[node] = self.out
        elif isinstance(target, torch._ops.OpOverload):
            name = target._schema.name.split("::")[1]
            if target in _NUMBERS and not node.users:
                return  # of a constant: the trace knew the number and went on with it
            if name in _EXPECTED:
                self._expect(node)
            elif name not in _DROPPED:
                self._operator(node, target)
        else:
            raise CaptureError(f"the operator '{target}' has no ONNX form", _source_line(node))

    def _expect(self, node: Node) -> None:
        """A condition that must hold in every run."""
        arguments: Any = torch.fx.node.map_arg(node.args, self.read)
        condition, *rest = arguments
        question = rest[0] if rest and isinstance(rest[0], str) else "a condition of the forward"
        self.values[node] = self.helper(
            "Expect", [condition], condition.dtype, condition.shape, "ai.ortmodule", expected=1, question=question
        )

    def _enter(self, node: Node) -> None:
        self._node = node
        self._result_name = node.name
        stack = node.meta.get("nn_module_stack")
        path = next(reversed(stack.values()))[0] if stack else ""
        path = path if isinstance(path, str) else ""
        self.builder.node_name = path.removeprefix(_MODULE_PREFIX) if path != "module" else ""
        region = recompute_region(node.meta)
        self.builder.metadata = {} if region is None else {"recompute": str(region)}

    def _operator(self, node: Node, target: torch._ops.OpOverload) -> None:
        written = target._schema.is_mutable
        functional = functional_form(target) if written else target
        if functional is None:
            raise CaptureError(f"the in-place operator '{target}' has no functional form", _source_line(node))
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.read)
        result = self._translate(functional, args, kwargs)
        if result is NotImplemented:
            result = aten_node.emit(self, functional, args, kwargs)
        if isinstance(result, Value) and result is next(iter(args), None):
            if node in self.apart:
                result = self.helper("Copy", [result], result.dtype, result.shape, "ai.ortmodule")
            elif functional in _COPIES or (functional == _CONTIGUOUS and not _is_contiguous(node)):
                result = self._copy(result)
        self.results.append((node, result))
        if written:
            self._write(node, result)
        else:
            self.values[node] = result
            self._bind_symbols(node)

    def _translate(self, target: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        name, overload = target._schema.name.removeprefix("aten::"), target._schema.overload_name
        translator = TRANSLATORS.get(f"{name}.{overload}" if overload else name)
        if translator is None and target.namespace != "aten":
            return custom_node.emit(self, target, args, kwargs)
        if translator is None or (self._is_complex(args) and name not in _ALSO_COMPLEX):
            return NotImplemented
        return translator(self, *args, **kwargs)

    def _is_complex(self, args: Sequence[Any]) -> bool:
        if isinstance(self.out, torch.Tensor) and self.out.dtype.is_complex:
            return True
        return any(isinstance(a, Value) and a.dtype.is_complex for a in args)

    def _write(self, node: Node, result: Value) -> None:
        root = self.root(_arguments(node)[0])
        self._roots[node] = root
        while root.target in PART_VIEWS:
            self.values[root] = result
            result = self._updated_base(root, result)
            root = self.root(_arguments(root)[0])
        self.rebind(root, result)

    def _updated_base(self, view: Node, part: Value) -> Value:
        """The tensor that `view` is a slice or a selection of, after `part` was written there."""
        base, *where = torch.fx.node.map_arg(view.args, self.read)
        self.out, self._result_name = self.root(_arguments(view)[0]).meta["val"], f"{view.name}.base"
        scatter = TRANSLATORS["select_scatter" if view.target is torch.ops.aten.select.int else "slice_scatter"]
        return scatter(self, base, part, *where)

    # -- sizes and numbers that come from data --------------------------------------------------------------------

    def _bind_symbols(self, node: Node) -> None:
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            value = self._bound_value(node, path)
            if value is not None:
                self.builder.bind(str(symbol), value)

    def _bound_value(self, node: Node, path: Sequence[Any]) -> Value | None:
        if not isinstance(node.meta["val"], torch.SymInt):  # the size of a result, found by walking to it
            value = self.values[node]
            axis = 0
            for key in path:
                if getattr(key, "name", None) == "size":
                    axis = path[-1].idx
                    break
                if not hasattr(key, "idx"):  # where a view starts in its storage, which a value does not have
                    return None
                value = value[key.idx]
            shape = self.helper("Shape", [value], torch.int64, (value.rank,))
            return self.helper("Gather", [shape, self.const(axis, torch.int64)], torch.int64, (), axis=0)
        if path and getattr(path[-1], "name", "item") != "item":
            return None
        return self._scalar(self.read(_arguments(node)[0]), torch.int64)

    def _scalar(self, value: Value, dtype: torch.dtype) -> Value:
        value = self.cast(value, dtype)
        return value if value.rank == 0 else self.helper("Reshape", [value, self.sizes([])], dtype, (), allowzero=1)

    def _copy(self, value: Value) -> Value:
        """What stays as it is when somebody writes the input behind `value` before the backward."""
        return self.helper("Copy", [value], value.dtype, value.shape, "ai.ortmodule", of_input=1)

    def _symbolic_float(self, node: Node) -> Value:
        """A Python float computed from sizes or from data: a 0-d double."""
        name = getattr(node.target, "__name__", str(node.target))
        operands = [self.read(a) if isinstance(a, Node) else a for a in _arguments(node)]
        if node.target in _NUMBERS:
            operand = self._copy(operands[0])
            source = self.helper("StopGradient", [operand], operand.dtype, operand.shape, "ai.ortmodule")
            return self._scalar(source, torch.float64)
        values = [self.tensor(a, torch.float64) for a in operands]
        if node.target in _FLOAT_ARITHMETIC:
            return self.helper(_FLOAT_ARITHMETIC[node.target], values, torch.float64, ())
        if name == "sym_float":
            return values[0]
        if name in ("_sym_sqrt", "sym_sqrt"):
            return self.helper("Sqrt", values, torch.float64, ())
        raise CaptureError(f"a Python float is computed with '{name}' of a size or a tensor", _source_line(node))


def _is_contiguous(node: Node) -> bool:
    """Whether a node's first operand is."""
    operand = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    return isinstance(operand, torch.Tensor) and operand.is_contiguous()


def _keeps_history(node: Node) -> bool:
    name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
    fakes = node.meta["val"] if isinstance(node.meta.get("val"), (list, tuple)) else [node.meta.get("val")]
    made = name == "detach" or name.startswith(("new_", "empty")) or name.endswith("_like")
    return not made and any(isinstance(f, torch.Tensor) and f.dtype.is_floating_point for f in fakes)


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args


def _source_line(node: Node) -> str | None:
    return user_line_of(node.meta.get("stack_trace"))
