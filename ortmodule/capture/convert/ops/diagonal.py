"""Diagonals: read and written by row and column numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...sizes import Dim
from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of


def _numbers(c: Emitter, start: int, count: Dim) -> Value:
    """`count` consecutive numbers."""
    bounds = [c.const(0, torch.int64), c.builder.size(count), c.const(1, torch.int64)]
    numbers = c.helper("Range", bounds, torch.int64, (count,))
    return c.helper("Add", [numbers, c.const(start, torch.int64)], torch.int64, (count,)) if start else numbers


def _places(c: Emitter, offset: int, count: Dim) -> list[Value]:
    """Rows and columns of a diagonal."""
    return [_numbers(c, max(0, -offset), count), _numbers(c, max(0, offset), count)]


def _to_the_end(rank: int, dim1: int, dim2: int) -> list[int]:
    """The order of axes in which the diagonal's two are the last."""
    pair = [axis_of(dim1, rank), axis_of(dim2, rank)]
    return [axis for axis in range(rank) if axis not in pair] + pair


def _permuted(c: Emitter, x: Value, order: Sequence[int]) -> Value:
    shape = [x.shape[axis] for axis in order]
    return x if list(order) == sorted(order) else c.helper("Transpose", [x], x.dtype, shape, perm=list(order))


@translates("diagonal", "linalg_diagonal")
def diagonal(c: Emitter, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    x = _permuted(c, self, _to_the_end(self.rank, dim1, dim2))
    dims = [self.rank - 2, self.rank - 1]
    return c.emit("Index", x, *_places(c, offset, c.shape[-1]), domain=ORTMODULE, dims=dims)


@translates("diagonal_scatter")
def diagonal_scatter(c: Emitter, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    order = _to_the_end(self.rank, dim1, dim2)
    x = _permuted(c, self, order)
    dims = [self.rank - 2, self.rank - 1]
    operands = [x, c.cast(src, self.dtype), *_places(c, offset, src.shape[-1])]
    if order == sorted(order):
        return c.emit("IndexPut", *operands, domain=ORTMODULE, dims=dims, accumulate=0)
    written = c.helper("IndexPut", operands, x.dtype, x.shape, ORTMODULE, dims=dims, accumulate=0)
    return c.emit("Transpose", written, perm=[order.index(axis) for axis in range(self.rank)])


@translates("diag_embed")
def diag_embed(c: Emitter, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = self.rank + 1
    if (axis_of(dim1, rank), axis_of(dim2, rank)) != (rank - 2, rank - 1):
        return NotImplemented
    return _embedded(c, self, offset)


@translates("diag")
def diag(c: Emitter, self: Value, diagonal: int = 0) -> Value:
    if self.rank == 1:
        return _embedded(c, self, diagonal)
    return c.emit("Index", self, *_places(c, diagonal, c.shape[0]), domain=ORTMODULE, dims=[0, 1])


def _embedded(c: Emitter, x: Value, offset: int) -> Value:
    zeros = c.helper("Expand", [c.tensor(0, c.dtype), c.sizes(c.shape)], c.dtype, c.shape)
    places = _places(c, offset, x.shape[-1])
    return c.emit("IndexPut", zeros, x, *places, domain=ORTMODULE, dims=[x.rank - 1, x.rank], accumulate=0)


@translates("trace")
def trace(c: Emitter, self: Value) -> Any:
    rows, columns = self.shape
    if rows != columns or c.dtype != self.dtype:
        return NotImplemented
    found = c.helper("Index", [self, *_places(c, 0, rows)], self.dtype, (rows,), ORTMODULE, dims=[0, 1])
    return c.emit("ReduceSum", found, c.sizes([0]), keepdims=0)
