"""Rows of com.microsoft's gradient operators of convolution, pooling, resizing, slicing and batch normalization.

Their samples are those of the forward operators, their reference is autograd through the forward rows' references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx import TensorProto, helper

from ..table import Case, Row, ints, rand
from .batch_norm import batch_norm_inputs
from .gradients import gradients, row
from .index import gather_nd, gather_nd_cases
from .scaling import fake_quant, fake_quant_cases
from .vision import resize, resize_cases
from .windows import (
    average_pool,
    average_pool_cases,
    conv,
    conv_cases,
    conv_transpose,
    conv_transpose_cases,
    max_pool,
    max_pool_cases,
)

Tensor = torch.Tensor
MICROSOFT = "com.microsoft"


def like(y: Tensor) -> Tensor:
    return rand(*y.shape, dtype=y.dtype)


# -- convolution -------------------------------------------------------------------------------------------------------


def convolution_grad(forward: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def reference(dy: Tensor, x: Tensor, w: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
        dx, dw = gradients(lambda a, b: forward(a, b, **attributes), x, w, dy=dy)
        return dx, dw, dy.sum([0, *range(2, dy.dim())])

    return reference


def convolution_cases(forward: Callable[..., Tensor], cases: Callable[[torch.dtype], Sequence[Case]]) -> Any:
    def made(dtype: torch.dtype) -> list[Case]:
        out = []
        for case in cases(dtype):
            x, w = case.inputs[:2]
            out.append(Case((like(forward(x, w, **case.attributes)), x, w), case.attributes, outputs=3))
        return out

    return made


# -- pooling: the graph declares the shape of dX -----------------------------------------------------------------------


def declared(op: str) -> Callable[..., list[Any]]:
    """The node, and the sizes of its result. Its type is left open, which the onnxruntime package refuses."""

    def nodes(names: list[str], outputs: list[str], attributes: dict[str, Any]) -> list[Any]:
        sizes = [None, None, *attributes["spatial"]]
        given = {k: v for k, v in attributes.items() if k != "spatial"}
        return [
            helper.make_node(op, names, ["dx"], domain=MICROSOFT, **given),
            helper.make_node("Identity", ["dx"], outputs),
            helper.make_tensor_value_info("dx", TensorProto.UNDEFINED, sizes),
        ]

    return nodes


def average_pool_grad(dy: Tensor, spatial: list[int], **attributes: Any) -> Tensor:
    x = torch.zeros(*dy.shape[:2], *spatial, dtype=dy.dtype)
    return gradients(lambda v: average_pool(v, **attributes), x, dy=dy)[0]


def average_pool_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for case in average_pool_cases(dtype):
        x = case.inputs[0]
        y = average_pool(x.float(), **case.attributes).to(dtype)  # PyTorch has no kernel for bfloat16 cubes
        out.append(Case((like(y),), {**case.attributes, "spatial": list(x.shape[2:])}, stock=False))
    return out


def max_pool_grad(dy: Tensor, indices: Tensor, spatial: list[int], storage_order: int = 0, **_: Any) -> Tensor:
    sizes = spatial[::-1] if storage_order else spatial
    dx = torch.zeros(*dy.shape[:2], *sizes, dtype=dy.dtype)
    dx.view(-1).index_add_(0, indices.flatten(), dy.flatten())
    return dx.permute(0, 1, *range(dx.dim() - 1, 1, -1)).contiguous() if storage_order else dx


def max_pool_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for case in max_pool_cases(dtype):
        if case.outputs < 2:
            continue
        x = case.inputs[0]
        y, indices = max_pool(x, **case.attributes)
        attributes = {**case.attributes, "spatial": list(x.shape[2:])}
        out.append(Case((like(y), indices), attributes, stock=False))
        out.append(Case((like(y), indices), {**attributes, "storage_order": 1}, stock=False))
    return out


# -- the others --------------------------------------------------------------------------------------------------------


def resize_grad(dy: Tensor, x: Tensor, roi: Tensor | None = None, factors: Tensor | None = None, **how: Any) -> Tensor:
    axes = how.get("axes") or range(x.dim())
    sizes = None if factors is not None else ints(*(dy.shape[axis] for axis in axes))
    return gradients(lambda v: resize(v, roi, factors, sizes, **how), x, dy=dy)[0]


def resize_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for case in resize_cases(dtype)[::3]:
        x, roi, factors = (*case.inputs, None)[:3]
        how = {k: v for k, v in case.attributes.items() if k != "extrapolation_value"}
        dy = like(resize(*case.inputs, **how))
        out.append(Case((dy, x, roi, factors), how, tuple(i + 1 for i in case.constants if i < 3)))
    return out


def own_resize_grad(
    dy: Tensor,
    x_sizes: Tensor,
    roi: Tensor | None = None,
    factors: Tensor | None = None,
    sizes: Tensor | None = None,
    **how: Any,
) -> Tensor:
    x = torch.zeros(x_sizes.tolist(), dtype=dy.dtype, requires_grad=True)
    with torch.enable_grad():
        y = resize(x, roi, factors, sizes, **how)
        return torch.autograd.grad(y, x, dy.expand_as(y), create_graph=True)[0]


def own_resize_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for case in resize_cases(dtype)[::3]:
        x, *more = case.inputs
        how = {k: v for k, v in case.attributes.items() if k != "extrapolation_value"}
        dy = like(resize(*case.inputs, **how))
        out.append(Case((dy, ints(*x.shape), *more), how, (1, *(i + 1 for i in case.constants))))
    return out


def slice_grad(dy: Tensor, shape: Tensor, *bounds: Tensor) -> Tensor:
    starts, ends, axes, steps = (*(b.tolist() for b in bounds), None, None)[:4]
    at = [slice(None)] * len(shape)
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        at[axes[k] if axes else k] = slice(start, end, steps[k] if steps else 1)
    dx = torch.zeros(shape.tolist(), dtype=dy.dtype)
    dx[tuple(at)] = dy
    return dx


def slice_grad_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((rand(2, 3, dtype=dtype), ints(4, 3), ints(1), ints(3)), {}, (1, 2, 3)),
        Case((rand(4, 2, dtype=dtype), ints(4, 5), ints(1), ints(9), ints(1), ints(2)), {}, (1, 2, 3, 4, 5)),
        Case((rand(2, 2, dtype=dtype), ints(4, 5), ints(-2, 0), ints(4, 4), ints(0, -1), ints(1, 2))),
    ]


def gather_nd_grad(shape: Tensor, indices: Tensor, dy: Tensor, batch_dims: int = 0) -> Tensor:
    x = torch.zeros(shape.tolist(), dtype=dy.dtype)
    return gradients(lambda v: gather_nd(v, indices, batch_dims), x, dy=dy)[0]


def gather_nd_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for case in gather_nd_cases(dtype):
        x, indices = case.inputs
        dy = like(gather_nd(x, indices, **case.attributes))
        out.append(Case((ints(*x.shape), indices, dy), case.attributes, (0,)))
    return out


def batch_statistics(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and one over the deviation, in the type that they are kept in."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    axes = [0, *range(2, x.dim())]
    mean, var = wide.mean(axes), wide.var(axes, correction=0)
    return mean, var, (var + epsilon).rsqrt()


def batch_norm_internal(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 1,
) -> tuple[Tensor, ...]:
    column = (-1, *[1] * (x.dim() - 2))
    if not training_mode:
        rstd = (var.to(torch.float32 if x.dtype == torch.bfloat16 else x.dtype) + epsilon).rsqrt()
        y = (x - mean.view(column)) * (rstd * scale).view(column) + bias.view(column)
        return (y.to(x.dtype),)
    own, own_var, rstd = batch_statistics(x, epsilon)
    y = (x.to(own.dtype) - own.view(column)) * (rstd * scale).view(column) + bias.view(column)
    running = [(momentum * old + (1 - momentum) * new).to(old.dtype) for old, new in ((mean, own), (var, own_var))]
    return (y.to(x.dtype), *(v.detach() for v in (*running, own, rstd)))


def batch_norm_internal_cases(outputs: int) -> Callable[[torch.dtype], list[Case]]:
    def cases(dtype: torch.dtype) -> list[Case]:
        out = [
            Case(batch_norm_inputs(dtype, *s), {"epsilon": 1e-3, "momentum": m}, outputs=outputs)
            for s, m in (((), 0.9), ((5,), 0.6), ((3, 4), 0.9))
        ]
        given = Case(batch_norm_inputs(dtype, 3, 4), {"training_mode": 0})
        return [*out, given] if outputs == 1 else out

    return cases


def batch_norm_grad(dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, rstd: Tensor, **_: Any) -> tuple[Tensor, ...]:
    axes, column = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
    xhat = (x.to(mean.dtype) - mean.view(column)) * rstd.view(column)
    g = dy * scale.view(column)
    dx = (g - g.mean(axes, keepdim=True) - xhat * (g * xhat).mean(axes, keepdim=True)) * rstd.view(column)
    return dx.to(x.dtype), (dy * xhat).sum(axes).to(scale.dtype), dy.to(mean.dtype).sum(axes).to(scale.dtype)


def batch_norm_grad_cases(dtype: torch.dtype) -> list[Case]:
    out = []
    for spatial in ((), (5,), (3, 4)):
        x, scale = batch_norm_inputs(dtype, *spatial)[:2]
        mean, _, rstd = batch_statistics(x, 1e-5)
        out.append(Case((like(x), x, scale, mean, rstd), {"epsilon": 1e-5}, outputs=3))
    return out


def fake_quant_grad_cases(dtype: torch.dtype) -> list[Case]:
    case = fake_quant_cases(dtype)[0]
    mask = fake_quant(*case.inputs, **case.attributes)[1]  # type: ignore[arg-type]
    return [Case((rand(*mask.shape, dtype=dtype), mask))]


SIZED: dict[str, Any] = {"no_forms": ("size",)}  # sizes that belong together
NORM: dict[str, Any] = {"tolerance": 5e-2, "no_forms": ("size 4 as 0", "size 5 as 0")}  # statistics of nothing
ROWS = [
    row("ConvGrad", convolution_grad(conv), convolution_cases(conv, conv_cases), **SIZED),
    row(
        "ConvTransposeGrad",
        convolution_grad(conv_transpose),
        convolution_cases(conv_transpose, conv_transpose_cases),
        **SIZED,
    ),
    row(
        "AveragePoolGrad",
        average_pool_grad,
        average_pool_grad_cases,
        wide=True,
        nodes=declared("AveragePoolGrad"),
        **SIZED,
    ),
    row("MaxPoolGrad", max_pool_grad, max_pool_grad_cases, nodes=declared("MaxPoolGrad"), **SIZED),
    row("ResizeGrad", resize_grad, resize_grad_cases, **SIZED),
    Row(
        "ResizeGrad",
        own_resize_grad,
        own_resize_grad_cases,
        "ai.ortmodule",
        grads=(0,),
        tolerance=5e-2,
        refuses=True,
        **SIZED,
    ),
    row("SliceGrad", slice_grad, slice_grad_cases, **SIZED),
    row("GatherNDGrad", gather_nd_grad, gather_nd_grad_cases, **SIZED),
    Row("BatchNormInternal", batch_norm_internal, batch_norm_internal_cases(1), MICROSOFT, grads=(0, 1, 2), **NORM),
    Row("BatchNormInternal", batch_norm_internal, batch_norm_internal_cases(5), MICROSOFT, False, **NORM),
    row("BatchNormalizationGrad", batch_norm_grad, batch_norm_grad_cases, **SIZED),
    row("FakeQuantGrad", lambda dy, mask: dy * mask, fake_quant_grad_cases),
]
