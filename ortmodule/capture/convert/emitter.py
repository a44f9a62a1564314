"""What a translator sees of a conversion: the node at hand, and typed emission, casts, constants and sizes.

A translator (ops/) is called with an `Emitter`, turns it to one or more ONNX operators and returns their results.
Not here: the walk over the nodes (converter.py), the ONNX writing (onnx_graph.py).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ..rewrite.regions import PART_VIEWS
from ..sizes import Dim, SizePrinter
from .onnx_graph import GraphBuilder, Value, onnx_type, run_device

__all__ = ["Emitter"]

_HALVES = (torch.float16, torch.bfloat16)


class Emitter:
    """The values of the nodes so far, and the node that is translated now.

    Attributes:
        builder, printer: the graph that is written and the texts of its sizes.
        values: of each fx node.
        written: the new value of each placeholder that was written into.
        out: what the node at hand makes: a fake tensor, a list of them, or a symbolic number.
    """

    def __init__(self, builder: GraphBuilder, printer: SizePrinter) -> None:
        self.builder = builder
        self.printer = printer
        self.values: dict[Node, Any] = {}
        self.written: dict[Node, Value] = {}
        self.out: Any = None
        self._roots: dict[Node, Node] = {}
        self._node: Node | None = None
        self._result_name = ""
        self._devices: set[torch.device] = set()
        self._history: set[Node] = set()

    def root(self, node: Node) -> Node:
        """The node that first made the tensor that `node` is, seen through in-place operators."""
        return self._roots.get(node, node)

    def read(self, node: Node) -> Any:
        """The present value of a node: a Value, a tuple of Values, a SymInt or a Python number."""
        return self.values[self.root(node)]

    @property
    def name(self) -> str:
        """Name of the node's result."""
        return self._result_name

    @property
    def operator(self) -> str:
        """The fx node's target as text, such as `aten.relu.default`."""
        assert self._node is not None
        return str(self._node.target)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The fx node's arguments as the trace has them."""
        assert self._node is not None
        return self._node.args, self._node.kwargs

    def changes_device(self) -> bool:
        """Whether the node's result lies on another device than its first argument."""
        assert self._node is not None
        source = self._node.args[0]
        return isinstance(source, Node) and source.meta["val"].device != self.out.device

    def has_history(self) -> bool:
        """Whether the node's first argument depends on what a gradient may be asked of, and is no part of a tensor."""
        assert self._node is not None
        source = self._node.args[0]
        if not isinstance(source, Node) or self.root(source).target in PART_VIEWS:
            return False
        return source in self._history or self.root(source) in self._history

    def elsewhere(self) -> bool:
        """Whether the node's result lies on another device than what the graph computes."""
        return self.out.device.type != run_device(self._devices).type

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the node's result."""
        return self.out.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Dims of the node's result."""
        return self.printer.shape(self.out)

    def emit(
        self, op: str, *inputs: Value | None, compute: torch.dtype | None = None, domain: str = "", **attrs: Any
    ) -> Value:
        """Emits the operator that makes the node's result.

        Args:
            compute: the dtype the operator itself yields where it is not the result's; a Cast follows.
        """
        if compute is not None and compute != self.dtype:
            return self.cast(
                self.helper(op, inputs, compute, self.shape, domain, **attrs), self.dtype, self._result_name
            )
        result = self.builder.value(self._result_name, self.dtype, self.shape)
        self.builder.node(op, inputs, [result], domain, **attrs)
        return result

    def emit_many(self, op: str, inputs: Sequence[Value | None], keep: Sequence[bool] | None = None, domain: str = "",
                  **attrs: Any) -> tuple[Value | None, ...]:  # fmt: skip
        """Emits the operator whose outputs are the node's results; `keep` says which are wanted."""
        kept = keep if keep is not None else [True] * len(self.out)
        results = [
            self.builder.value(f"{self._result_name}.{i}", fake.dtype, self.printer.shape(fake)) if wanted else None
            for i, (fake, wanted) in enumerate(zip(self.out, kept, strict=True))
        ]
        self.builder.node(op, inputs, results, domain, **attrs)
        return tuple(results)

    def helper(
        self,
        op: str,
        inputs: Sequence[Value | None],
        dtype: torch.dtype,
        shape: Sequence[Dim],
        domain: str = "",
        **attrs: Any,
    ) -> Value:
        """Emits an operator for an intermediate value that has no fx node."""
        result = self.builder.value(f"{self._result_name}.{op.lower()}", dtype, shape)
        self.builder.node(op, inputs, [result], domain, **attrs)
        return result

    def cast(self, value: Value, dtype: torch.dtype, name: str | None = None, by_autocast: bool = False) -> Value:
        """`value` in another dtype; itself where nothing changes. Fused kernels need not round for `by_autocast`."""
        if value.dtype == dtype:
            return value
        result = self.builder.value(name or f"{self._result_name}.cast", dtype, value.shape)
        self.builder.node("Cast", [value], [result], to=int(onnx_type(dtype)))
        if by_autocast:
            self.builder.graph.node[-1].metadata_props.add(key="autocast", value=str(dtype))
        return result

    def tensor(self, x: Any, dtype: torch.dtype) -> Value:
        """A Value, number or symbolic size as a Value of `dtype`; numbers are 0-d."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if isinstance(x, torch.SymInt):
            return self.cast(self.builder.size(self.printer.dim(x)), dtype)
        return self.builder.const(_converted(x, dtype), dtype)

    def const(self, data: Any, dtype: torch.dtype) -> Value:
        """A small constant."""
        return self.builder.const(data, dtype)

    def sizes(self, dims: Sequence[Any]) -> Value:
        """Ints, SymInts or size texts as a 1-D int64 value."""
        return self.builder.sizes([d if isinstance(d, (int, str)) else self.printer.dim(d) for d in dims])

    def dim(self, size: Any) -> Dim:
        """One int or SymInt as int or text."""
        return self.printer.dim(size)

    def opmath(self, *scalars: Any) -> torch.dtype:
        """The dtype to compute in: float32 where the result is half precision and cannot hold a scalar exactly."""
        if self.dtype in _HALVES and any(isinstance(s, (int, float)) and not _exact(s, self.dtype) for s in scalars):
            return torch.float32
        return self.dtype

    def used_outputs(self) -> list[bool]:
        """For each of the node's results, whether anything reads it."""
        assert self._node is not None
        used = [False] * len(self.out)
        for user in self._node.users:
            if user.target is operator.getitem and user.users:
                position: Any = user.args[1]
                used[position] = True
        return used

    def rebind(self, root: Node, value: Value) -> None:
        """From here on `root` reads as `value`; a placeholder's new value becomes a mutation of the module."""
        self.values[root] = value
        if root.op == "placeholder":
            self.written[root] = value

    def argument_root(self, index: int) -> Node | None:
        """The node behind the present operator's positional argument, for operators that write hidden state."""
        assert self._node is not None
        argument = self._node.args[index] if index < len(self._node.args) else None
        return self.root(argument) if isinstance(argument, Node) else None


def _converted(x: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return bool(x)
    if dtype.is_complex:
        return complex(x)
    return float(x) if dtype.is_floating_point else int(x)


def _exact(x: float, dtype: torch.dtype) -> bool:
    return torch.tensor(x, dtype=dtype).item() == x or x != x
