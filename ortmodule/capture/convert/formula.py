"""Short names for compositions: operators on broadcasting operands of one dtype, in which numbers are constants."""

from __future__ import annotations

from typing import Any

import torch

from ..sizes import Dim
from .emitter import Emitter
from .onnx_graph import Value

__all__ = ["Formula"]


class Formula:
    """Emits the operators of one composition.

    Attributes:
        dtype: what is computed in: the result's dtype; with `wide`, float32 where that is half precision, for
            operators whose kernels in torch round only once.
    """

    def __init__(self, c: Emitter, wide: bool = False, dtype: torch.dtype | None = None) -> None:
        self.c = c
        self.dtype = dtype or c.dtype
        if wide and self.dtype in (torch.float16, torch.bfloat16):
            self.dtype = torch.float32

    def __call__(self, op: str, *operands: Any, domain: str = "", **attributes: Any) -> Value:
        """An intermediate value; bool operands stay as they are."""
        values = self._values(operands)
        return self.c.helper(op, values, self.dtype, _broadcast(values), domain, **attributes)

    def compare(self, op: str, *operands: Any) -> Value:
        """An intermediate bool value."""
        values = self._values(operands)
        return self.c.helper(op, values, torch.bool, _broadcast(values))

    def result(self, op: str, *operands: Any, **attributes: Any) -> Value:
        """The node's result."""
        return self.c.emit(op, *self._values(operands), compute=self.dtype, **attributes)

    def _values(self, operands: tuple[Any, ...]) -> list[Value]:
        return [x if isinstance(x, Value) and x.dtype == torch.bool else self.c.tensor(x, self.dtype) for x in operands]


def _broadcast(values: list[Value]) -> tuple[Dim, ...]:
    rank = max(v.rank for v in values)
    columns = zip(*((1,) * (rank - v.rank) + v.shape for v in values), strict=True)
    # Sizes that are no 1 are equal; where a number and a text say so, the number says more.
    return tuple(min((d for d in column if d != 1), key=lambda d: isinstance(d, str), default=1) for column in columns)
