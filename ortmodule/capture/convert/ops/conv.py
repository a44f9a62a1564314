"""Translators of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..emitter import Emitter
from ..onnx_graph import Value
from ..registry import translates


def repeated(values: Sequence[int], spatial: int) -> list[int]:
    return list(values) * spatial if len(values) == 1 else list(values)


@translates("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv(
    c: Emitter,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Any:
    spatial = weight.rank - 2
    kernel = weight.shape[2:]
    if input.rank != weight.rank or not all(isinstance(k, int) for k in kernel):
        return NotImplemented
    dilations = repeated(dilation, spatial)
    if isinstance(padding, str):
        totals = [d * (int(k) - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel, strict=True)]
        pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
    else:
        pads = repeated(padding, spatial) * 2
    return c.emit(
        "Conv",
        input,
        weight,
        bias,
        dilations=dilations,
        group=groups,
        pads=pads,
        strides=repeated(stride, spatial),
        kernel_shape=list(kernel),
    )


@translates("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    c: Emitter,
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
