"""Operators that read or write by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of

_MASKS = (torch.bool, torch.uint8)


def _from_the_front(c: Emitter, index: Value) -> Value:
    """The positions, none of which may be negative: ONNX counts those from the end, where torch refuses them."""
    return c.helper("NonNegative", [index], index.dtype, index.shape, domain=ORTMODULE)


@translates("embedding")
def embedding(c: Emitter, weight: Value, indices: Value, padding_idx: Any = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Any:  # fmt: skip
    if scale_grad_by_freq or sparse or not isinstance(padding_idx, int):
        return NotImplemented
    if padding_idx < 0:
        return c.emit("Gather", weight, _from_the_front(c, indices), axis=0)
    return c.emit("Embedding", weight, indices, domain=ORTMODULE, padding_idx=padding_idx)


@translates("index_select")
def index_select(c: Emitter, self: Value, dim: int, index: Value) -> Any:
    if self.rank == 0 or index.rank != 1:
        return NotImplemented
    return c.emit("Gather", self, _from_the_front(c, index), axis=axis_of(dim, self.rank))


@translates("gather")
def gather(c: Emitter, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Any:
    if self.rank == 0 or self.rank != index.rank:
        return NotImplemented
    return c.emit("GatherElements", self, _from_the_front(c, index), axis=axis_of(dim, self.rank))


@translates("scatter.src")
def scatter(c: Emitter, self: Value, dim: int, index: Value, src: Value) -> Any:
    return _scatter(c, self, dim, index, src, None)


@translates("scatter.value")
def scatter_value(c: Emitter, self: Value, dim: int, index: Value, value: Any) -> Any:
    if self.rank == 0 or self.rank != index.rank:
        return NotImplemented
    filler = c.helper("Expand", [c.tensor(value, self.dtype), c.sizes(index.shape)], self.dtype, index.shape)
    return _scatter(c, self, dim, index, filler, None)


@translates("scatter_add")
def scatter_add(c: Emitter, self: Value, dim: int, index: Value, src: Value) -> Any:
    return _scatter(c, self, dim, index, src, "add")


def _at_positions(c: Emitter, src: Value, index: Value) -> Value:
    """The elements of `src` that have a position: ONNX wants as many of both."""
    axes = [a for a, (have, want) in enumerate(zip(src.shape, index.shape, strict=True)) if have != want]
    if not axes:
        return src
    ends = c.sizes([index.shape[a] for a in axes])
    return c.helper("Slice", [src, c.sizes([0] * len(axes)), ends, c.sizes(axes)], src.dtype, index.shape)


def _scatter(c: Emitter, x: Value, dim: int, index: Value, src: Value, reduction: str | None) -> Any:
    if x.rank == 0 or not x.rank == index.rank == src.rank or x.dtype != src.dtype:
        return NotImplemented
    src = _at_positions(c, src, index)
    index = _from_the_front(c, index)
    return c.emit("ScatterElements", x, index, src, axis=axis_of(dim, x.rank), reduction=reduction)


_EXTREMES = {"amax": "max", "amin": "min"}


@translates("scatter_reduce.two")
def scatter_reduce(
    c: Emitter, self: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Any:
    if self.rank == 0 or not self.rank == index.rank == src.rank or self.dtype != src.dtype:
        return NotImplemented
    if reduce == "prod" or not self.dtype.is_floating_point:
        return NotImplemented
    if reduce in _EXTREMES and not include_self:  # torch counts `self` among the ties all the same
        return NotImplemented
    how = _EXTREMES.get(reduce, "add")
    src = _at_positions(c, src, index)
    index = _from_the_front(c, index)
    axis = axis_of(dim, self.rank)

    def write(into: Value, values: Value, reduction: str | None) -> Value:
        operands = [into, index, values]
        return c.helper("ScatterElements", operands, self.dtype, self.shape, axis=axis, reduction=reduction)

    def filled(value: float, like: Value) -> Value:
        return c.helper("Expand", [c.const(value, self.dtype), c.sizes(like.shape)], self.dtype, like.shape)

    # Where it is written to and not counted, `self` becomes zero.
    base = self if include_self else write(self, filled(0.0, index), None)
    if reduce != "mean":
        return c.emit("ScatterElements", base, index, src, axis=axis, reduction=how)
    ones = filled(1.0, self)
    counted = ones if include_self else write(ones, filled(0.0, index), None)
    f = Formula(c)
    return f.result("Div", write(base, src, how), f("Max", write(counted, filled(1.0, index), how), 1))


@translates("index.Tensor")
def index(c: Emitter, self: Value, indices: Sequence[Value | None]) -> Any:
    given = [(i, v) for i, v in enumerate(indices) if v is not None]
    if not given or any(v.dtype in _MASKS for _, v in given):
        return NotImplemented
    if len(given) == 1:
        return c.emit("Gather", self, given[0][1], axis=given[0][0])
    return c.emit("Index", self, *(v for _, v in given), domain=ORTMODULE, dims=[i for i, _ in given])


@translates("index_put")
def index_put(c: Emitter, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Any:
    given = [(i, v) for i, v in enumerate(indices) if v is not None]
    if len(given) == 1 and given[0][1].dtype in _MASKS and values.rank == 0 and not accumulate:
        return _fill_where(c, self, *given[0], values)
    if not given or any(v.dtype in _MASKS for _, v in given) or values.dtype != self.dtype:
        return NotImplemented
    dims = [i for i, _ in given]
    operands = (v for _, v in given)
    return c.emit("IndexPut", self, values, *operands, domain=ORTMODULE, dims=dims, accumulate=int(accumulate))


def _fill_where(c: Emitter, x: Value, first: int, mask: Value, value: Value) -> Any:
    """`x[:, mask] = value` as a choice: the mask lies over the axes from `first` on."""
    behind = x.rank - first - mask.rank
    if behind:
        shape = (*mask.shape, *[1] * behind)
        mask = c.helper("Unsqueeze", [mask, c.sizes(list(range(mask.rank, len(shape))))], mask.dtype, shape)
    return c.emit("Where", c.cast(mask, torch.bool), value, x)


@translates("index_add")
def index_add(c: Emitter, self: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Any:
    if alpha != 1 or self.rank == 0 or index.rank != 1 or source.dtype != self.dtype:
        return NotImplemented
    dims = [axis_of(dim, self.rank)]
    index = _from_the_front(c, index)
    return c.emit("IndexPut", self, source, index, domain=ORTMODULE, dims=dims, accumulate=1)
