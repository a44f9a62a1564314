"""Arithmetic with symbolic sizes, done once: torch asks the same of the same sizes some hundred times an operator.

A tensor's strides, whether it is contiguous, how many bytes it spans: each is computed anew for every tensor, of sizes
that hardly differ from one operator to the next, and each sum is a walk through sympy. Here an operation on two sizes
is remembered by what they are; one that a trace has recorded as a node is that node from then on.

Not here: what becomes of a remainder (remainders.py), a trace that is slow in spite of it (pace.py).
"""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode

from ...patching import Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_OPERATIONS = (
    "add", "sub", "mul", "mod", "int_floordiv", "floordiv", "sym_max", "sym_min",
    "eq", "ne", "gt", "ge", "lt", "le", "and_", "or_", "sym_and", "sym_or",
)  # fmt: skip


def _remembered(original: Any, state: TraceState) -> Any:
    known: dict[tuple[Any, ...], SymNode] = {}

    def operate(self: SymNode, other: SymNode) -> SymNode:
        mode = get_proxy_mode()
        tracer = None if mode is None else mode.tracer
        key = tracer, self.shape_env, self._expr, other._expr, self.pytype, other.pytype
        found = known.get(key)
        if found is None:
            found = known[key] = original(self, other)
        return found

    return operate


ORDER = 1  # around what else is done with a result (remainders.py)
PATCHES = tuple(Patch(SymNode, name, _remembered) for name in _OPERATIONS if hasattr(SymNode, name))
