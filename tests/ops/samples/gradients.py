"""Rows of com.microsoft's gradient operators, against autograd through the forward operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand

Tensor = torch.Tensor
Forward = Callable[..., Tensor]


def gradients(forward: Forward, *xs: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the floating inputs of `forward`."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in xs]
    with torch.enable_grad():
        y = forward(*leaves)
        return torch.autograd.grad(y, [x for x in leaves if x.requires_grad], dy.expand_as(y))


def row(name: str, reference: Callable[..., Any], cases: Callable[[torch.dtype], list[Case]], **more: Any) -> Row:
    return Row(name, reference, cases, "com.microsoft", differentiable=False, tolerance=5e-2, refuses=True, **more)


def pointwise(name: str, forward: Callable[..., Tensor], *forms: dict[str, float]) -> Row:
    """dX from dY and X, for each form's attributes."""

    def reference(dy: Tensor, x: Tensor, **attributes: float) -> Tensor:
        return gradients(lambda v: forward(v, **attributes), x, dy=dy)[0]

    def cases(dtype: torch.dtype) -> list[Case]:
        return [Case((rand(2, 3, 4, dtype=dtype), rand(2, 3, 4, dtype=dtype)), form) for form in forms or ({},)]

    return row(name, reference, cases)


def biased(name: str, approximate: str) -> Row:
    def reference(dy: Tensor, x: Tensor, b: Tensor) -> Tensor:
        return gradients(lambda v: F.gelu(v, approximate=approximate), x + b, dy=dy)[0]

    def cases(dtype: torch.dtype) -> list[Case]:
        return [Case((rand(2, 3, 4, dtype=dtype), rand(2, 3, 4, dtype=dtype), rand(4, dtype=dtype)))]

    return row(name, reference, cases)


def softmax(name: str, logarithm: bool, flat: bool) -> Row:
    def reference(dy: Tensor, y: Tensor, axis: int = 1 if flat else -1) -> Tensor:
        shape = dy.shape
        if flat:
            dy, y = dy.flatten(axis), y.flatten(axis)
        over = dict(dim=axis, keepdim=True)
        dx = dy - y.exp() * dy.sum(**over) if logarithm else y * (dy - (dy * y).sum(**over))
        return dx.view(shape)

    def cases(dtype: torch.dtype) -> list[Case]:
        function = torch.log_softmax if logarithm else torch.softmax
        dy, y = rand(2, 3, 4, dtype=dtype), function(rand(2, 3, 4, dtype=dtype), -1)
        return [Case((dy, y)), Case((dy, y), {"axis": 2 if flat else 1})]

    return row(name, reference, cases)


def dropout(dy: Tensor, mask: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Tensor:
    if training is None or not bool(training):
        return dy
    return dy * mask / (1 - (0.5 if ratio is None else float(ratio)))


def dropout_cases(dtype: torch.dtype) -> list[Case]:
    dy, mask = rand(2, 3, 4, dtype=dtype), rand(2, 3, 4, dtype=torch.bool)
    return [Case((dy, mask, torch.tensor(0.25), torch.tensor(on))) for on in (True, False)]


def div_cases(dtype: torch.dtype) -> list[Case]:
    a, b = rand(2, 3, 4, dtype=dtype), rand(3, 1, dtype=dtype, low=1, high=2)
    return [Case((rand(2, 3, 4, dtype=dtype), a, b), outputs=2), Case((rand(2, 3, 4, dtype=dtype), a, a), outputs=2)]


def norm_rule(centered: bool, invertible: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The formula of the gradient: the statistics given are those of X."""

    def rule(dy: Tensor, x: Tensor, scale: Tensor, *rest: Tensor, axis: int = -1) -> tuple[Tensor, ...]:
        rstd, axes = rest[-1], list(range(axis % dy.dim(), dy.dim()))
        xhat = (x - rest[0]) / scale if invertible else ((x - rest[0]) if centered else x) * rstd
        g = dy * scale
        inner = g - xhat * (g * xhat).mean(axes, keepdim=True)
        dx = (inner - g.mean(axes, keepdim=True) if centered else inner) * rstd
        grads = [(dy * xhat).sum_to_size(scale.shape), dy.sum_to_size(scale.shape)]
        return tuple(v.to(dy.dtype) for v in (dx, *grads[: 2 if centered else 1]))

    return rule


def norm_cases(centered: bool, invertible: bool) -> Callable[[torch.dtype], list[Case]]:
    def cases(dtype: torch.dtype) -> list[Case]:
        wide = dtype if dtype == torch.float64 else torch.float32
        out = []
        for axis, sizes in ((-1, (4,)), (1, (3, 4))):
            x, axes = rand(2, 3, 4, dtype=wide), list(range(axis % 3, 3))
            mean = x.mean(axes, keepdim=True) if centered else torch.zeros(1, dtype=wide)
            rstd = ((x - mean).square().mean(axes, keepdim=True) + 1e-5).rsqrt()
            scale, bias = rand(*sizes, dtype=dtype, low=1, high=2), rand(*sizes, dtype=dtype)
            kept = ((x - mean) * rstd * scale + bias) if invertible else x
            middle = [bias] if invertible else [mean] if centered else []
            inputs = (rand(2, 3, 4, dtype=dtype), kept.to(dtype), scale, *middle, rstd)
            out.append(Case(inputs, {"axis": axis}, outputs=3 if centered else 2))
        return out

    return cases


def norm(name: str, centered: bool, invertible: bool = False) -> Row:
    # Statistics belong to whole rows of X: parts of it have others, by a broadcast that the operator refuses.
    return row(name, norm_rule(centered, invertible), norm_cases(centered, invertible), no_forms=("size",))


def gather_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((ints(4, 3), ints(2, 0, 2), rand(3, 3, dtype=dtype)), {}, (0,)),
        Case((ints(2, 4, 3), torch.tensor([[1, -1], [0, 0]]), rand(2, 2, 2, 3, dtype=dtype)), {"axis": 1}, (0,)),
    ]


def gather(shape: Tensor, indices: Tensor, dy: Tensor, axis: int = 0) -> Tensor:
    x = torch.zeros(shape.tolist(), dtype=dy.dtype)
    at = [slice(None)] * axis + [indices]
    return gradients(lambda v: v[tuple(at)], x, dy=dy)[0]


def gather_elements(dy: Tensor, shape: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    x = torch.zeros(shape.tolist(), dtype=dy.dtype)
    return gradients(lambda v: v.gather(axis, indices % x.shape[axis]), x, dy=dy)[0]


def elements_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((rand(2, 3, dtype=dtype), ints(4, 3), torch.tensor([[0, 3, 1], [0, -1, 2]])), {}, (1,)),
        Case((rand(2, 2, dtype=dtype), ints(2, 5), torch.tensor([[4, 4], [0, 1]])), {"axis": -1}, (1,)),
    ]


ROWS = [
    row("ReluGrad", lambda dy, y: dy * (y > 0), lambda d: [Case((rand(2, 3, dtype=d), rand(2, 3, dtype=d)))]),
    row("SigmoidGrad", lambda dy, y: dy * y * (1 - y), lambda d: [Case((rand(2, 3, dtype=d), rand(2, 3, dtype=d)))]),
    row("TanhGrad", lambda dy, y: dy * (1 - y * y), lambda d: [Case((rand(2, 3, dtype=d), rand(2, 3, dtype=d)))]),
    pointwise("GeluGrad", F.gelu),
    pointwise("FastGeluGrad", lambda x: F.gelu(x, approximate="tanh")),
    pointwise("QuickGeluGrad", lambda x, alpha=1.702: x * torch.sigmoid(alpha * x), {}, {"alpha": 1.0}),
    pointwise("LeakyReluGrad", lambda x, alpha=0.01: F.leaky_relu(x, alpha), {}, {"alpha": 0.5}),
    biased("BiasGeluGrad_dX", "none"),
    biased("BiasFastGeluGrad_dX", "tanh"),
    softmax("SoftmaxGrad", logarithm=False, flat=True),
    softmax("LogSoftmaxGrad", logarithm=True, flat=True),
    softmax("SoftmaxGrad_13", logarithm=False, flat=False),
    softmax("LogSoftmaxGrad_13", logarithm=True, flat=False),
    row("DropoutGrad", dropout, dropout_cases),
    row("DivGrad", lambda dy, a, b: gradients(torch.div, a, b, dy=dy), div_cases),
    norm("LayerNormalizationGrad", centered=True),
    norm("SimplifiedLayerNormalizationGrad", centered=False),
    norm("InvertibleLayerNormalizationGrad", centered=True, invertible=True),
    row("GatherGrad", gather, gather_cases, no_forms=("size",)),
    row("GatherElementsGrad", gather_elements, elements_cases, no_forms=("size",)),
]
