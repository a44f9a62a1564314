"""Translators of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..emitter import Emitter
from ..onnx_graph import Value
from ..registry import translates
from .conv import repeated


@translates("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    c: Emitter,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    return _pool(c, "MaxPool", self, kernel_size, stride, padding, ceil_mode, dilation)


@translates("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    c: Emitter,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    if ceil_mode or divisor_override is not None:
        return NotImplemented
    return _pool(c, "AveragePool", self, kernel_size, stride, padding, False, (1,), int(count_include_pad))


def _pool(
    c: Emitter,
    op: str,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    dilation: Sequence[int],
    count_include_pad: int | None = None,
) -> Any:
    spatial = x.rank - 2
    if f"{spatial}d" not in c.operator:  # without a batch dim
        return NotImplemented
    sizes = repeated(kernel, spatial)
    return c.emit(
        op,
        x,
        kernel_shape=sizes,
        strides=repeated(stride, spatial) if stride else sizes,
        pads=repeated(padding, spatial) * 2,
        ceil_mode=int(ceil_mode),
        dilations=repeated(dilation, spatial),
        count_include_pad=count_include_pad,
    )


@translates("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(c: Emitter, self: Value, output_size: Sequence[Any]) -> Any:
    spatial = len(output_size)
    sizes = self.shape[2:]
    if self.rank != spatial + 2:
        return NotImplemented
    if all(s == 1 for s in output_size):
        return c.emit("GlobalAveragePool", self)
    whole = all(
        isinstance(s, int) and isinstance(o, int) and s % o == 0 for s, o in zip(sizes, output_size, strict=True)
    )
    if not whole:
        return NotImplemented
    kernel = [int(s) // int(o) for s, o in zip(sizes, output_size, strict=True)]
    return _pool(c, "AveragePool", self, kernel, kernel, (0,), False, (1,), 1)
