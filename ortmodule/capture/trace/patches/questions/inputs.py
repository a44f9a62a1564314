"""The truth of a tensor (`if mask.any():`) or of a number made from one (`if lengths.max().item() > 4:`).

An export cannot know it. Where the capture decides such branches, they go the way that branches.py answers.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from ....source_lines import current_source_line
from ...patching import Patch, caller
from ...raising_branches import truth_that_goes_on
from ...tracing import TraceState

__all__ = ["PATCHES"]


def _decides(state: TraceState) -> bool:
    return state.branches is not None


def _answered(original: Any, state: TraceState) -> Any:
    branches = state.branches
    assert branches is not None

    def ask(self: torch.Tensor) -> Any:
        known = None
        if isinstance(self, FakeTensor) and (self.dtype == torch.bool or original.__name__ == "__bool__"):
            asker = caller()
            known = branches.answer(self, current_source_line, lambda: truth_that_goes_on(asker))
        return original(self) if known is None else known

    return ask


def _evaluated(original: Any, state: TraceState) -> Any:
    branches = state.branches
    assert branches is not None

    def evaluate(self: ShapeEnv, expression: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, expression, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            known = branches.number(expression, current_source_line)
            if known is None:
                raise
            answer = sympy.sympify(known)
            # What else is decided about these numbers must agree with it. Torch 2.11 keeps no fact about floating
            # numbers alone: each further question about them is answered from the same data.
            if any(symbol.is_integer for symbol in expression.free_symbols):
                truth = expression if known else sympy.Not(expression)
                fact = truth if isinstance(known, bool) else sympy.Eq(expression, answer)
                self.guard_or_defer_runtime_assert(fact, "a branch on data")
            return answer

    return evaluate


PATCHES = (
    *(Patch(torch.Tensor, name, _answered, when=_decides) for name in ("__bool__", "item")),
    Patch(ShapeEnv, "evaluate_expr", _evaluated, when=_decides),
)
