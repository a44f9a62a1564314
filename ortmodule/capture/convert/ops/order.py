"""Operators that order the elements of an axis, or pick by order."""

from __future__ import annotations

from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of


@translates("topk")
def topk(c: Emitter, self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    # Not the standard's TopK: among equal values that one takes the lower position, and torch's any.
    if self.rank == 0:
        return NotImplemented
    attributes: dict[str, Any] = {"axis": axis_of(dim, self.rank), "largest": int(largest), "sorted": int(sorted)}
    return c.emit_many("TopK", [self, c.sizes([k])], domain=ORTMODULE, **attributes)


def _order(dim: int, rank: int, descending: bool, stable: bool) -> dict[str, Any]:
    return {"axis": axis_of(dim, rank), "descending": int(descending), "stable": int(stable)}


@translates("sort")
def sort(c: Emitter, self: Value, dim: int = -1, descending: bool = False) -> Any:
    return stable_sort(c, self, False, dim, descending)


@translates("sort.stable")
def stable_sort(c: Emitter, self: Value, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if self.rank == 0:
        return NotImplemented
    return c.emit_many("Sort", [self], domain=ORTMODULE, **_order(dim, self.rank, descending, bool(stable)))


@translates("argsort")
def argsort(c: Emitter, self: Value, dim: int = -1, descending: bool = False) -> Any:
    return stable_argsort(c, self, False, dim, descending)


@translates("argsort.stable")
def stable_argsort(c: Emitter, self: Value, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if self.rank == 0:
        return NotImplemented
    result = c.builder.value(c.name, c.dtype, c.shape)
    c.builder.node("Sort", [self], [None, result], ORTMODULE, **_order(dim, self.rank, descending, bool(stable)))
    return result


def _extreme(c: Emitter, op: str, x: Value, dim: int, keepdim: bool) -> Any:
    if x.rank == 0 or x.dtype == torch.bool:
        return NotImplemented
    axis = axis_of(dim, x.rank)
    kept = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    position = c.helper(op, [x], torch.int64, kept, axis=axis, keepdims=1)
    value = c.helper("GatherElements", [x, position], x.dtype, kept, axis=axis)
    if keepdim:
        return value, position
    shape = tuple(d for i, d in enumerate(x.shape) if i != axis)
    return tuple(c.helper("Squeeze", [v, c.sizes([axis])], v.dtype, shape) for v in (value, position))


@translates("max.dim")
def max_dim(c: Emitter, self: Value, dim: int, keepdim: bool = False) -> Any:
    return _extreme(c, "ArgMax", self, dim, keepdim)


@translates("min.dim")
def min_dim(c: Emitter, self: Value, dim: int, keepdim: bool = False) -> Any:
    return _extreme(c, "ArgMin", self, dim, keepdim)
