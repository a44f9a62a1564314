"""Reductions, scans and counts."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of


def reduced(c: Emitter, op: str, x: Value, dim: Any, keepdim: bool) -> Value:
    """The node's result: a reduction over `dim`, an axis, several or, without any, all."""
    x = c.cast(x, c.dtype)
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = c.sizes(sorted(axis_of(d, x.rank) for d in dims)) if dims and x.rank else None
    return c.emit(op, x, axes, keepdims=int(keepdim))


@translates("sum.dim_IntList", "sum")
def sum_(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(c, "ReduceSum", self, dim, keepdim)


@translates("mean.dim", "mean")
def mean(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(c, "ReduceMean", self, dim, keepdim)


def _moments(c: Emitter, fake: torch.Tensor, x: Value, dim: Any, correction: Any, keepdim: bool) -> Any:
    """The composition, the mean and the variance over `dim`, or NotImplemented."""
    dims = sorted(axis_of(d, x.rank) for d in ([dim] if isinstance(dim, int) else dim or range(x.rank)))
    if not dims or not x.dtype.is_floating_point:
        return NotImplemented
    f = Formula(c, wide=True, dtype=x.dtype)
    less = 1 if correction is None else correction
    sizes = [x.shape[d] for d in dims]
    known = math.prod(d for d in sizes if isinstance(d, int))
    symbolic = [c.builder.size(d) for d in sizes if isinstance(d, str)]
    if not symbolic and known <= less:  # torch gives infinity or no number
        return NotImplemented
    count: Any = known
    for size in symbolic:
        count = size if count == 1 else f("Mul", size, count)
    degrees = f("Max", f("Sub", count, less), 0) if symbolic else float(known - less)
    axes = c.sizes(dims)
    shape = c.printer.shape(fake)
    kept = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    x = c.cast(x, f.dtype)
    mean = c.helper("ReduceMean", [x, axes], f.dtype, kept, keepdims=1)
    # Differences from the first element are zero where all are one number, whose mean by summing is off by rounding.
    starts, ones = c.sizes([0] * len(dims)), c.sizes([1] * len(dims))
    start = c.helper("Slice", [x, starts, ones, axes], f.dtype, kept)
    shifted = f("Sub", x, f("StopGradient", start, domain=ORTMODULE))
    # The mean is the minimum of the squares: no gradient reaches it from them.
    middle = c.helper("ReduceMean", [shifted, axes], f.dtype, kept, keepdims=1)
    centered = f("Sub", shifted, f("StopGradient", middle, domain=ORTMODULE, first_order=2))
    squares = f("Mul", centered, centered)
    total = c.helper("ReduceSum", [squares, axes], f.dtype, shape, keepdims=int(keepdim))
    flat = mean if keepdim else c.helper("Squeeze", [mean, axes], f.dtype, shape)
    return f, flat, f("Div", total, degrees)


def _root(f: Formula, variance: Value) -> Value:
    """The square root with the gradient zero at zero, which torch gives a deviation."""
    zero = f.compare("Equal", variance, 0)
    return f("Where", zero, 0, f("Sqrt", f("Where", zero, 1, variance)))


def _spread(name: str, root: bool, with_mean: bool) -> None:
    @translates(f"{name}.correction")
    def corrected(c: Emitter, self: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        found = _moments(c, c.out[0] if with_mean else c.out, self, dim, correction, keepdim)
        if found is NotImplemented:
            return found
        f, mean, variance = found
        results = [_root(f, variance) if root else variance, mean][: 1 + with_mean]
        results = [c.cast(r, self.dtype) for r in results]
        return tuple(results) if with_mean else results[0]

    @translates(name, f"{name}.dim")
    def unbiased(c: Emitter, self: Value, *args: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        dim = args[0] if args and not isinstance(args[0], bool) else None
        flags = [a for a in args if isinstance(a, bool)]
        unbiased, keepdim = (*flags, *(unbiased, keepdim)[len(flags) :])
        return corrected(c, self, dim, correction=int(unbiased), keepdim=keepdim)


_spread("var", root=False, with_mean=False)
_spread("std", root=True, with_mean=False)
_spread("var_mean", root=False, with_mean=True)
_spread("std_mean", root=True, with_mean=True)


def _counted(c: Emitter, x: Value, dim: Any, keepdim: bool, whether: bool = True) -> Value:
    """How many elements are true, or are not, as an integer: of none it is zero."""
    true = c.cast(x, torch.bool)
    counted = true if whether else c.helper("Not", [true], torch.bool, x.shape)
    ones = c.cast(counted, torch.int64)
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = sorted(axis_of(d, x.rank) for d in dims) if x.rank else []
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keepdim or i not in axes) if axes else ()
    shape = (1,) * x.rank if keepdim and not axes else shape
    return c.helper("ReduceSum", [ones, c.sizes(axes) if axes else None], torch.int64, shape, keepdims=int(keepdim))


@translates("any", "any.dim", "any.dims")
def any_(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if dim == []:
        return NotImplemented
    return c.emit("Greater", _counted(c, self, dim, keepdim), c.const(0, torch.int64), compute=torch.bool)


@translates("all", "all.dim", "all.dims")
def all_(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if dim == []:
        return NotImplemented
    return c.emit("Equal", _counted(c, self, dim, keepdim, False), c.const(0, torch.int64), compute=torch.bool)


@translates("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(c: Emitter, self: Value, dim: Any = None) -> Any:
    return _counted(c, self, dim, False)


@translates("prod", "prod.dim_int")
def prod(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(c, "ReduceProd", self, dim, keepdim)


@translates("amax", "max")
def amax(c: Emitter, self: Value, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if c.dtype == torch.bool else reduced(c, "ReduceMax", self, dim, keepdim)


@translates("amin", "min")
def amin(c: Emitter, self: Value, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if c.dtype == torch.bool else reduced(c, "ReduceMin", self, dim, keepdim)


def _index_of(c: Emitter, op: str, x: Value, dim: int | None, keepdim: bool) -> Any:
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
def argmax(c: Emitter, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of(c, "ArgMax", self, dim, keepdim)


@translates("argmin")
def argmin(c: Emitter, self: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    return _index_of(c, "ArgMin", self, dim, keepdim)


@translates("cumsum")
def cumsum(c: Emitter, self: Value, dim: int, dtype: Any = None) -> Any:
    if self.rank == 0:
        return NotImplemented
    return c.emit("CumSum", c.cast(self, c.dtype), c.const(axis_of(dim, self.rank), torch.int64))


@translates("histc")
def histc(c: Emitter, self: Value, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if min >= max:  # the range is that of the data
        return NotImplemented
    return c.emit("Histogram", self, domain=ORTMODULE, bins=bins, low=float(min), high=float(max))


@translates("logsumexp")
def logsumexp(c: Emitter, self: Value, dim: Any, keepdim: bool = False) -> Value:
    return reduced(c, "ReduceLogSumExp", self, dim, keepdim)


@translates("linalg_vector_norm")
def vector_norm(
    c: Emitter, self: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if ord not in (1, 2) or self.dtype.is_complex:
        return NotImplemented
    return reduced(c, f"ReduceL{int(ord)}", self, dim, keepdim)


@translates("norm.Scalar", "norm.ScalarOpt_dtype")
def norm(c: Emitter, self: Value, p: Any = 2, dtype: Any = None) -> Any:
    return vector_norm(c, self, 2 if p is None else p)


@translates("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def norm_over(c: Emitter, self: Value, p: Any, dim: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    return vector_norm(c, self, 2 if p is None else p, dim, keepdim)


@translates("softmax.int", "_softmax")
def softmax(c: Emitter, self: Value, dim: int, dtype: Any = None) -> Value:
    return c.emit("Softmax", c.cast(self, c.dtype), axis=axis_of(dim, self.rank))


@translates("log_softmax.int", "_log_softmax")
def log_softmax(c: Emitter, self: Value, dim: int, dtype: Any = None) -> Value:
    return c.emit("LogSoftmax", c.cast(self, c.dtype), axis=axis_of(dim, self.rank))


def _triangle(c: Emitter, x: Value, diagonal: int, upper: int) -> Value:
    return c.emit("Trilu", x, c.const(diagonal, torch.int64), upper=upper)


@translates("tril")
def tril(c: Emitter, self: Value, diagonal: int = 0) -> Value:
    return _triangle(c, self, diagonal, 0)


@translates("triu")
def triu(c: Emitter, self: Value, diagonal: int = 0) -> Value:
    return _triangle(c, self, diagonal, 1)
