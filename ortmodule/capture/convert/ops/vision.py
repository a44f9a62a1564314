"""Operators on pictures: interpolation, sampling, pixels and channels in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...sizes import Dim
from ..emitter import Emitter
from ..onnx_graph import Value
from ..registry import translates


@translates("upsample_nearest2d.vec")
def upsample_nearest(
    c: Emitter, input: Value, output_size: Sequence[Any] | None, scale_factors: Sequence[float] | None
) -> Any:
    # Other factors than powers of two hit an element's border or miss it by a rounding that only ATen repeats.
    if scale_factors is None or any(math.frexp(s)[0] != 0.5 for s in scale_factors):
        return NotImplemented
    how: dict[str, Any] = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return c.emit("Resize", input, None, _scales(c, scale_factors), **how)


@translates("upsample_bilinear2d.vec")
def upsample_bilinear(
    c: Emitter,
    input: Value,
    output_size: Sequence[Any] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Any:
    if not input.dtype.is_floating_point:
        return NotImplemented
    coordinates = "align_corners" if align_corners else "half_pixel"
    if scale_factors is not None and not align_corners:
        if input.dtype == torch.float64 and torch.tensor(scale_factors).tolist() != [*scale_factors]:
            return NotImplemented  # Resize's factors are floats
        scales = _scales(c, scale_factors)
        return c.emit("Resize", input, None, scales, mode="linear", coordinate_transformation_mode=coordinates)
    sizes = c.sizes(c.shape)
    return c.emit("Resize", input, None, None, sizes, mode="linear", coordinate_transformation_mode=coordinates)


def _scales(c: Emitter, factors: Sequence[float]) -> Value:
    return c.const([1.0, 1.0, *factors], torch.float32)


_SAMPLING, _PADDING = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@translates("grid_sampler")
def grid_sampler(
    c: Emitter, input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    if input.dtype not in (torch.float32, torch.float64) or grid.dtype != input.dtype:
        return NotImplemented
    mode, padding = _SAMPLING[interpolation_mode], _PADDING[padding_mode]
    return c.emit("GridSample", input, grid, mode=mode, padding_mode=padding, align_corners=int(align_corners))


@translates("affine_grid_generator")
def affine_grid(c: Emitter, theta: Value, size: Sequence[Any], align_corners: bool) -> Any:
    if theta.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return c.emit("AffineGrid", theta, c.sizes(list(size)), align_corners=int(align_corners))


def _rearranged(c: Emitter, x: Value, apart: Sequence[Dim], order: Sequence[int]) -> Value:
    """The node's result: `x` in the shape `apart`, its axes in `order`, in the result's shape."""
    parts = c.helper("Reshape", [x, c.sizes(apart)], x.dtype, apart, allowzero=1)
    turned = c.helper("Transpose", [parts], x.dtype, [apart[i] for i in order], perm=list(order))
    return c.emit("Reshape", turned, c.sizes(c.shape), allowzero=1)


@translates("pixel_shuffle")
def pixel_shuffle(c: Emitter, self: Value, upscale_factor: int) -> Any:
    k, batch = self.rank - 3, list(range(self.rank - 3))
    apart = (*self.shape[:k], c.shape[k], upscale_factor, upscale_factor, *self.shape[k + 1 :])
    return _rearranged(c, self, apart, [*batch, k, k + 3, k + 1, k + 4, k + 2])


@translates("pixel_unshuffle")
def pixel_unshuffle(c: Emitter, self: Value, downscale_factor: int) -> Any:
    k, batch = self.rank - 3, list(range(self.rank - 3))
    apart = (*self.shape[: k + 1], c.shape[k + 1], downscale_factor, c.shape[k + 2], downscale_factor)
    return _rearranged(c, self, apart, [*batch, k, k + 2, k + 4, k + 1, k + 3])


@translates("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(c: Emitter, self: Value, groups: Any) -> Any:
    channels, groups = self.shape[1], c.dim(groups)
    known = isinstance(channels, int) and isinstance(groups, int)
    each = channels // groups if known else f"(({channels})//({groups}))"
    apart = (self.shape[0], groups, each, *self.shape[2:])
    return _rearranged(c, self, apart, [0, 2, 1, *range(3, self.rank + 1)])
