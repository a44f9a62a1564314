"""`as_strided` and its scatter, by element numbers: a tensor's strides are not part of a graph.

The elements are those that the trace saw: numbered through the argument's memory, which the traced strides describe,
and read with Gather from (or written with ScatterElements into) the argument laid out flat. torch's own derivative of
`as_strided_scatter` (`fill_diagonal_` comes to one) gives the gradient at the wrong elements; this is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....errors import CaptureError
from ..emitter import Emitter
from ..onnx_graph import Value
from ..registry import translates


def _axes_by_stride(c: Emitter, x: torch.Tensor) -> list[int] | None:
    """The order of axes in which a tensor's elements lie in its memory one after another; None: they do not."""
    if x.storage_offset() != 0:
        return None
    natural = list(range(x.dim()))
    strides = list(x.stride())
    numbers = all(isinstance(stride, int) for stride in strides)
    for order in (natural, sorted(natural, key=lambda axis: -strides[axis])) if numbers else (natural,):
        dense: Any = 1
        fits = True
        for axis in reversed(order):
            size = x.shape[axis]
            fits = fits and (c.dim(size) == 1 or c.dim(strides[axis]) == c.dim(dense))
            dense = dense * size
        if fits:
            return order
    return None


def _laid_out(c: Emitter, x: Value, fake: torch.Tensor, order: list[int]) -> Value:
    """`x` as it lies in memory, one-dimensional."""
    if order != sorted(order):
        x = c.helper("Transpose", [x], x.dtype, [x.shape[axis] for axis in order], perm=order)
    return c.helper("Reshape", [x, c.sizes([fake.numel()])], x.dtype, (c.dim(fake.numel()),), allowzero=1)


def _elements(c: Emitter, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Value:
    """The number of each element, of shape `size`."""
    total = c.tensor(offset, torch.int64)
    shape: list[Any] = []
    for i, (count, step) in enumerate(zip(size, stride, strict=True)):
        bounds = [c.tensor(bound, torch.int64) for bound in (0, count, 1)]
        along = c.helper("Range", bounds, torch.int64, (c.dim(count),))
        along = c.helper("Mul", [along, c.tensor(step, torch.int64)], torch.int64, along.shape)
        behind = len(size) - i - 1
        if behind:
            column = (c.dim(count), *[1] * behind)
            along = c.helper("Reshape", [along, c.sizes(column)], torch.int64, column, allowzero=1)
        shape.append(c.dim(count))
        total = c.helper("Add", [total, along], torch.int64, (*shape, *[1] * behind))
    return total


def _argument(c: Emitter) -> tuple[torch.Tensor, list[int]]:
    """The argument as the trace saw it, and the order of its axes in memory."""
    node = c.argument_root(0)
    assert node is not None
    fake = node.meta["val"]
    order = _axes_by_stride(c, fake)
    if order is None:
        raise CaptureError(f"{c.operator} of a part of a tensor depends on what lies beside it in memory")
    return fake, order


@translates("as_strided")
def as_strided(
    c: Emitter, self: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Value:
    fake, order = _argument(c)
    elements = _elements(c, size, stride, storage_offset or 0)
    return c.emit("Gather", _laid_out(c, self, fake, order), elements, axis=0)


@translates("as_strided_scatter")
def as_strided_scatter(
    c: Emitter, self: Value, src: Value, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Value:
    fake, order = _argument(c)
    if order != sorted(order):
        raise CaptureError(f"{c.operator} of a tensor whose axes lie in another order in memory has no ONNX form")
    whole = c.sizes([-1])
    elements = _elements(c, size, stride, storage_offset or 0)
    index, source = (
        c.helper("Reshape", [x, whole], x.dtype, (c.dim(_product(size)),)) for x in (elements, c.cast(src, c.dtype))
    )
    flat = _laid_out(c, self, fake, order)
    filled = c.helper("ScatterElements", [flat, index, source], c.dtype, flat.shape, axis=0)
    return c.emit("Reshape", filled, c.sizes(c.shape), allowzero=1)


def _product(size: Sequence[Any]) -> Any:
    count: Any = 1
    for one in size:
        count = count * one
    return count
