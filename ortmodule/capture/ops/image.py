"""Operators that enlarge: transposed convolution and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph import Value
from .registry import translates

if TYPE_CHECKING:
    from ..converter import Converter


@translates("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Converter,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Any:
    spatial = weight.rank - 2
    if input.rank != weight.rank or not all(isinstance(k, int) for k in weight.shape[2:]):
        return NotImplemented

    def each(values: Sequence[int]) -> list[int]:
        return list(values) * spatial if len(values) == 1 else list(values)

    return c.emit(
        "ConvTranspose",
        input,
        weight,
        bias,
        strides=each(stride),
        pads=each(padding) * 2,
        output_padding=each(output_padding),
        group=groups,
        dilations=each(dilation),
        kernel_shape=list(weight.shape[2:]),
    )


@translates("upsample_nearest2d.vec")
def upsample_nearest(
    c: Converter, input: Value, output_size: Sequence[Any] | None, scale_factors: Sequence[float] | None
) -> Any:
    # Other factors than powers of two hit an element's border or miss it by a rounding that only ATen repeats.
    if scale_factors is None or any(math.frexp(s)[0] != 0.5 for s in scale_factors):
        return NotImplemented
    how: dict[str, Any] = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return c.emit("Resize", input, None, _scales(c, scale_factors), **how)


@translates("upsample_bilinear2d.vec")
def upsample_bilinear(
    c: Converter,
    input: Value,
    output_size: Sequence[Any] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Any:
    if not input.dtype.is_floating_point:
        return NotImplemented
    coordinates = "align_corners" if align_corners else "half_pixel"
    if scale_factors is not None and not align_corners:
        scales = _scales(c, scale_factors)
        return c.emit("Resize", input, None, scales, mode="linear", coordinate_transformation_mode=coordinates)
    sizes = c.sizes(c.shape)
    return c.emit("Resize", input, None, None, sizes, mode="linear", coordinate_transformation_mode=coordinates)


def _scales(c: Converter, factors: Sequence[float]) -> Value:
    return c.const([1.0, 1.0, *factors], torch.float32)
