"""Reductions, scans and counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..graph import ORTMODULE, Value
from .registry import translates
from .shape import axis_of

if TYPE_CHECKING:
    from ..converter import Converter


def _reduce(c: Converter, op: str, x: Value, dim: Any, keepdim: bool) -> Value:
    x = c.cast(x, c.dtype)
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = c.sizes(sorted(axis_of(d, x.rank) for d in dims)) if dims and x.rank else None
    return c.emit(op, x, axes, keepdims=int(keepdim))


@translates("sum.dim_IntList", "sum")
def sum_(c: Converter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduce(c, "ReduceSum", self, dim, keepdim)


@translates("mean.dim", "mean")
def mean(c: Converter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduce(c, "ReduceMean", self, dim, keepdim)


@translates("var.correction")
def var(c: Converter, self: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    dims = [axis_of(d, self.rank) for d in ([dim] if isinstance(dim, int) else dim or range(self.rank))]
    sizes = [self.shape[d] for d in dims]
    count = math.prod(d for d in sizes if isinstance(d, int)) - (1 if correction is None else correction)
    if not dims or self.dtype in (torch.float16, torch.bfloat16) or count <= 0:
        return NotImplemented
    if any(isinstance(d, str) for d in sizes) or self.dtype.is_complex:
        return NotImplemented
    axes = c.sizes(sorted(dims))
    kept = tuple(1 if i in dims else d for i, d in enumerate(self.shape))
    mean = c.helper("ReduceMean", [self, axes], c.dtype, kept, keepdims=1)
    centered = c.helper("Sub", [self, mean], c.dtype, self.shape)
    squares = c.helper("Mul", [centered, centered], c.dtype, self.shape)
    total = c.helper("ReduceSum", [squares, axes], c.dtype, c.shape, keepdims=int(keepdim))
    return c.emit("Div", total, c.const(float(count), c.dtype))


@translates("var", "var.dim")
def unbiased_var(c: Converter, self: Value, *args: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    dim = args[0] if args and not isinstance(args[0], bool) else None
    flags = [a for a in args if isinstance(a, bool)]
    unbiased, keepdim = (*flags, *(unbiased, keepdim)[len(flags) :])
    return var(c, self, dim, correction=int(unbiased), keepdim=keepdim)


@translates("amax", "max")
def amax(c: Converter, self: Value, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if c.dtype == torch.bool else _reduce(c, "ReduceMax", self, dim, keepdim)


@translates("amin", "min")
def amin(c: Converter, self: Value, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if c.dtype == torch.bool else _reduce(c, "ReduceMin", self, dim, keepdim)


def _index_of(c: Converter, op: str, x: Value, dim: int | None, keepdim: bool) -> Any:
    if dim is None:
        if keepdim or x.rank == 0:
            return NotImplemented
        if x.rank > 1:
            fixed = math.prod(d for d in x.shape if isinstance(d, int))
            total = "*".join([str(fixed), *(f"({d})" for d in x.shape if isinstance(d, str))])
            size = fixed if total == str(fixed) else total
            x = c.helper("Reshape", [x, c.sizes([size])], x.dtype, (size,), allowzero=1)
    if x.rank == 0:
        return NotImplemented
    return c.emit(op, x, axis=axis_of(dim or 0, x.rank), keepdims=int(keepdim))


@translates("argmax")
def argmax(c: Converter, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of(c, "ArgMax", self, dim, keepdim)


@translates("argmin")
def argmin(c: Converter, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of(c, "ArgMin", self, dim, keepdim)


@translates("cumsum")
def cumsum(c: Converter, self: Value, dim: int, dtype: Any = None) -> Any:
    if self.rank == 0:
        return NotImplemented
    return c.emit("CumSum", c.cast(self, c.dtype), c.const(axis_of(dim, self.rank), torch.int64))


@translates("histc")
def histc(c: Converter, self: Value, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if min >= max:  # the range is that of the data
        return NotImplemented
    return c.emit("Histogram", self, domain=ORTMODULE, bins=bins, low=float(min), high=float(max))


@translates("logsumexp")
def logsumexp(c: Converter, self: Value, dim: Any, keepdim: bool = False) -> Value:
    return _reduce(c, "ReduceLogSumExp", self, dim, keepdim)


@translates("linalg_vector_norm")
def vector_norm(
    c: Converter, self: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if ord not in (1, 2) or self.dtype.is_complex:
        return NotImplemented
    return _reduce(c, f"ReduceL{int(ord)}", self, dim, keepdim)


@translates("softmax.int", "_softmax")
def softmax(c: Converter, self: Value, dim: int, dtype: Any = None) -> Value:
    return c.emit("Softmax", c.cast(self, c.dtype), axis=axis_of(dim, self.rank))


@translates("log_softmax.int", "_log_softmax")
def log_softmax(c: Converter, self: Value, dim: int, dtype: Any = None) -> Value:
    return c.emit("LogSoftmax", c.cast(self, c.dtype), axis=axis_of(dim, self.rank))


def _triangle(c: Converter, x: Value, diagonal: int, upper: int) -> Value:
    return c.emit("Trilu", x, c.const(diagonal, torch.int64), upper=upper)


@translates("tril")
def tril(c: Converter, self: Value, diagonal: int = 0) -> Value:
    return _triangle(c, self, diagonal, 0)


@translates("triu")
def triu(c: Converter, self: Value, diagonal: int = 0) -> Value:
    return _triangle(c, self, diagonal, 1)
