"""Operators that only rearrange: views, permutations, slices, joins.

Sizes are always those of the traced result, fully explicit, so that no -1 has to be resolved at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...sizes import Dim
from .. import aten_node
from ..emitter import Emitter
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates

INT_MAX = torch.iinfo(torch.int64).max


def axis_of(dim: int, rank: int) -> int:
    """A possibly negative axis as a non-negative one."""
    return dim % rank if rank else 0


@translates("view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "view_as", "reshape_as", "ravel",
            "_reshape_alias")  # fmt: skip
def reshape(c: Emitter, self: Value, *args: Any, **kwargs: Any) -> Value:
    if self.shape == c.shape:
        return self
    return c.emit("Reshape", self, c.sizes(c.shape), allowzero=1)


def _permuted(c: Emitter, x: Value, order: Sequence[int]) -> Value:
    return x if list(order) == list(range(x.rank)) else c.emit("Transpose", x, perm=list(order))


@translates("permute")
def permute(c: Emitter, self: Value, dims: Sequence[int]) -> Value:
    return _permuted(c, self, [axis_of(d, self.rank) for d in dims])


@translates("transpose.int", "swapaxes", "swapdims")
def transpose(c: Emitter, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(self.rank))
    if order:
        a, b = axis_of(dim0, self.rank), axis_of(dim1, self.rank)
        order[a], order[b] = order[b], order[a]
    return _permuted(c, self, order)


@translates("t", "numpy_T")
def reverse_axes(c: Emitter, self: Value) -> Value:
    return _permuted(c, self, range(self.rank - 1, -1, -1))


@translates("mT")
def matrix_transpose(c: Emitter, self: Value) -> Value:
    return transpose(c, self, -2, -1)


@translates("movedim.int", "moveaxis.int")
def movedim(c: Emitter, self: Value, source: int, destination: int) -> Value:
    order = list(range(self.rank))
    order.insert(axis_of(destination, self.rank), order.pop(axis_of(source, self.rank)))
    return _permuted(c, self, order)


@translates("unsqueeze")
def unsqueeze(c: Emitter, self: Value, dim: int) -> Value:
    return c.emit("Unsqueeze", self, c.sizes([axis_of(dim, self.rank + 1)]))


@translates("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(c: Emitter, self: Value, dim: int | Sequence[int] | None = None) -> Value:
    wanted = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [a for a in (axis_of(d, self.rank) for d in wanted) if self.rank and self.shape[a] == 1]
    return c.emit("Squeeze", self, c.sizes(sorted(axes))) if axes else self


@translates("expand", "expand_as", "broadcast_to")
def expand(c: Emitter, self: Value, *args: Any, **kwargs: Any) -> Value:
    return self if self.shape == c.shape else c.emit("Expand", self, c.sizes(c.shape))


@translates("broadcast_tensors")
def broadcast_tensors(c: Emitter, tensors: Sequence[Value]) -> tuple[Value, ...]:
    shapes = [c.printer.shape(fake) for fake in c.out]
    return tuple(
        x if x.shape == shape else c.helper("Expand", [x, c.sizes(shape)], x.dtype, shape)
        for x, shape in zip(tensors, shapes, strict=True)
    )


@translates("repeat")
def repeat(c: Emitter, self: Value, repeats: Sequence[Any]) -> Value:
    added = len(repeats) - self.rank
    if added:
        self = c.helper("Unsqueeze", [self, c.sizes(list(range(added)))], self.dtype, (*[1] * added, *self.shape))
    return c.emit("Tile", self, c.sizes(repeats))


@translates("repeat_interleave.self_int")
def repeat_interleave(c: Emitter, self: Value, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    if dim is None and self.rank != 1:
        return NotImplemented
    axis = axis_of(dim or 0, self.rank)
    shape = (*self.shape[: axis + 1], 1, *self.shape[axis + 1 :])
    column = c.helper("Unsqueeze", [self, c.sizes([axis + 1])], self.dtype, shape)
    shape = (*self.shape[: axis + 1], c.dim(repeats), *self.shape[axis + 1 :])
    return c.emit("Reshape", c.helper("Expand", [column, c.sizes(shape)], self.dtype, shape), c.sizes(c.shape))


@translates("roll")
def roll(c: Emitter, self: Value, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    axes = [axis_of(d, self.rank) for d in dims]
    if not axes or not all(
        isinstance(s, int) and isinstance(self.shape[a], int) for s, a in zip(shifts, axes, strict=True)
    ):
        return NotImplemented
    x = self
    for shift, axis in zip(shifts, axes, strict=True):
        size = self.shape[axis]
        assert isinstance(size, int)
        cut = -shift % size if size else 0
        if cut:
            parts = [_part(c, x, axis, start, end) for start, end in ((cut, size), (0, cut))]
            x = c.helper("Concat", parts, x.dtype, x.shape, axis=axis)
    return x


def _part(c: Emitter, x: Value, axis: int, start: int, end: int) -> Value:
    shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
    bounds = [c.sizes([start]), c.sizes([end]), c.sizes([axis])]
    return c.helper("Slice", [x, *bounds], x.dtype, shape)


@translates("diff")
def diff(
    c: Emitter, self: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None
) -> Any:
    if n != 1 or self.rank == 0:
        return NotImplemented
    where = axis_of(dim, self.rank)
    parts = [x for x in (prepend, self, append) if x is not None]
    if any(x.dtype != c.dtype or x.rank != self.rank for x in parts):
        return NotImplemented
    whole = self
    if len(parts) > 1:
        size = c.shape[where]
        longer = size + 1 if isinstance(size, int) else f"({size} + 1)"
        shape = (*c.shape[:where], longer, *c.shape[where + 1 :])
        whole = c.helper("Concat", parts, c.dtype, shape, axis=where)
    axis = c.sizes([where])
    after, before = (
        c.helper("Slice", [whole, c.sizes([start]), c.sizes([end]), axis], c.dtype, c.shape)
        for start, end in ((1, INT_MAX), (0, -1))
    )
    return c.emit("Xor" if c.dtype == torch.bool else "Sub", after, before)


@translates("flip")
def flip(c: Emitter, self: Value, dims: Sequence[int]) -> Value:
    axes = sorted(axis_of(d, self.rank) for d in dims)
    if not axes:
        return self
    count = len(axes)
    bounds = [c.sizes([-1] * count), c.sizes([-INT_MAX] * count), c.sizes(axes), c.sizes([-1] * count)]
    return c.emit("Slice", self, *bounds)


def _bounds(c: Emitter, start: Any, end: Any) -> tuple[Dim, Dim]:
    return c.dim(0 if start is None else start), c.dim(INT_MAX if end is None else end)


@translates("slice.Tensor")
def slice_(c: Emitter, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    if c.shape == self.shape and step == 1:
        return self
    first, last = _bounds(c, start, end)
    axis = axis_of(dim, self.rank)
    return c.emit("Slice", self, c.sizes([first]), c.sizes([last]), c.sizes([axis]), c.sizes([step]))


@translates("narrow")
def narrow(c: Emitter, self: Value, dim: int, start: Any, length: Any) -> Any:
    if isinstance(start, Value):
        return NotImplemented
    return slice_(c, self, dim, start, start + length)


@translates("select.int")
def select(c: Emitter, self: Value, dim: int, index: Any) -> Value:
    return c.emit("Gather", self, c.tensor(index, torch.int64), axis=axis_of(dim, self.rank))


@translates("slice_scatter")
def slice_scatter(
    c: Emitter, self: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    first, last = _bounds(c, start, end)
    bounds = [c.sizes([b]) for b in (first, last, step)]
    axis = axis_of(dim, self.rank)
    return c.emit("SliceScatter", self, c.cast(src, c.dtype), *bounds, domain=ORTMODULE, axis=axis)


@translates("select_scatter")
def select_scatter(c: Emitter, self: Value, src: Value, dim: int, index: Any) -> Value:
    axis = axis_of(dim, self.rank)
    shape = (*src.shape[:axis], 1, *src.shape[axis:])
    row = c.helper("Unsqueeze", [c.cast(src, c.dtype), c.sizes([axis])], c.dtype, shape)
    last = INT_MAX if isinstance(index, int) and index == -1 else index + 1
    return slice_scatter(c, self, row, axis, index, last)


@translates("copy")
def copy(c: Emitter, self: Value, src: Value, non_blocking: bool = False) -> Any:
    if c.dtype.is_complex:  # torch's own `copy` has no derivative
        if src.dtype == c.dtype and src.shape == c.shape:
            return src
        return aten_node.emit(c, torch.ops.aten.where.self, (c.const(True, torch.bool), src, self), {})
    if src.dtype.is_complex:
        return NotImplemented
    source = c.cast(src, c.dtype)
    if c.has_history():  # what is written over gets zeros for a gradient, as what is filled does (constant.py)
        return c.emit("Where", c.tensor(False, torch.bool), self, source)
    return source if source.shape == c.shape else c.emit("Expand", source, c.sizes(c.shape))


def _split(c: Emitter, x: Value, dim: int) -> Any:
    axis = axis_of(dim, x.rank)
    if len(c.out) == 1:
        return (x,)
    return c.emit_many("Split", [x, c.sizes([c.dim(part.shape[axis]) for part in c.out])], axis=axis)


@translates("split.Tensor", "split_with_sizes", "chunk", "tensor_split.sections", "split.sizes", "unsafe_split.Tensor",
            "unsafe_split_with_sizes", "unsafe_chunk")  # fmt: skip
def split(c: Emitter, self: Value, size: Any, dim: int = 0) -> Any:
    return _split(c, self, dim)


@translates("unbind.int")
def unbind(c: Emitter, self: Value, dim: int = 0) -> Any:
    axis = axis_of(dim, self.rank)
    row = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
    parts = [c.builder.value(f"{c.name}.part", self.dtype, row) for _ in c.out] if len(c.out) > 1 else [self]
    if len(c.out) > 1:
        c.builder.node("Split", [self, c.sizes([1] * len(c.out))], parts, axis=axis)
    shape = (*self.shape[:axis], *self.shape[axis + 1 :])
    return tuple(c.helper("Squeeze", [part, c.sizes([axis])], self.dtype, shape) for part in parts)


@translates("cat", "concat", "concatenate")
def cat(c: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [c.cast(t, c.dtype) for t in tensors if t.shape != (0,) or len(c.shape) == 1]
    return parts[0] if len(parts) == 1 else c.emit("Concat", *parts, axis=axis_of(dim, len(c.shape)))


@translates("stack")
def stack(c: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    rank = len(c.shape)
    axis = axis_of(dim, rank)
    shape = (*c.shape[:axis], 1, *c.shape[axis + 1 :])
    rows = [c.helper("Unsqueeze", [c.cast(t, c.dtype), c.sizes([axis])], c.dtype, shape) for t in tensors]
    return c.emit("Concat", *rows, axis=axis)


@translates("pad", "constant_pad_nd")
def pad(c: Emitter, self: Value, pad: Sequence[Any], mode: Any = "constant", value: Any = None) -> Any:
    if not isinstance(mode, str):  # constant_pad_nd has its value in third place
        mode, value = "constant", mode
    if mode != "constant":
        return NotImplemented
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    pairs += [(0, 0)] * (self.rank - len(pairs))
    pads = [low for low, _ in reversed(pairs)] + [high for _, high in reversed(pairs)]
    return c.emit("Pad", self, c.sizes(pads), c.tensor(0 if value is None else value, c.dtype), mode="constant")
