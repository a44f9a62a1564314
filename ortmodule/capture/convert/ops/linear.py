"""Translators of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates

# Those that hold a factor as an attribute does: in 32 bits.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@translates("linear")
def linear(c: Emitter, input: Value, weight: Value, bias: Value | None = None) -> Any:
    return c.emit("Linear", input, weight, bias, domain=ORTMODULE) if weight.rank == 2 else NotImplemented


@translates("matmul", "mm", "bmm", "mv", "dot")
def matmul(c: Emitter, self: Value, other: Value) -> Value:
    return c.emit("MatMul", self, other)


@translates("addmm")
def addmm(c: Emitter, self: Value, mat1: Value, mat2: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    if (beta, alpha) == (1, 1):
        return c.emit("Gemm", mat1, mat2, self)
    if c.dtype not in _FLOATS or not all(isinstance(v, (int, float)) for v in (beta, alpha)) or beta == 0:
        return NotImplemented  # with beta 0 the sum's NaN do not count
    return c.emit("Gemm", mat1, mat2, self, alpha=float(alpha), beta=float(beta))


@translates("baddbmm")
def baddbmm(c: Emitter, self: Value, batch1: Value, batch2: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    if c.dtype in (torch.float16, torch.bfloat16) and (beta, alpha) != (1, 1):
        return NotImplemented  # torch scales before it rounds
    product = c.helper("MatMul", [batch1, batch2], c.dtype, (batch1.shape[0], batch1.shape[1], batch2.shape[2]))
    if alpha != 1:
        product = c.helper("Mul", [product, c.const(alpha, c.dtype)], c.dtype, product.shape)
    if beta == 0:
        return product
    added = self if beta == 1 else c.helper("Mul", [self, c.const(beta, c.dtype)], c.dtype, self.shape)
    return c.emit("Add", added, product)


def _has_gradient(equation: str) -> bool:
    """Whether Einsum's gradient is one too: not where axes beside an ellipsis, or it, are in one term only."""
    terms = equation.replace(" ", "").replace("->", ",").split(",")
    for i, term in enumerate(terms[:-1]):
        others, letters = "".join(terms[:i] + terms[i + 1 :]), term.replace(".", "")
        if letters != term and (len(set(letters)) < len(letters) or not set(term) <= set(others)):
            return False
    return True


@translates("einsum")
def einsum(c: Emitter, equation: str, tensors: Sequence[Value], path: Any = None) -> Any:
    if any(t.dtype != c.dtype for t in tensors) or "->" not in equation or not _has_gradient(equation):
        return NotImplemented
    return c.emit("Einsum", *tensors, equation=equation.replace(" ", ""))


@translates("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(
    c: Emitter, self: Value, mat2: Value, offs: Value | None = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    if offs is None or bias is not None or (self.rank, mat2.rank) != (2, 3) or self.dtype != c.dtype:
        return NotImplemented
    return c.emit("GroupedMatMul", self, mat2, offs, domain=ORTMODULE)
