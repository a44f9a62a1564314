"""Rows of activation units, trigonometry, draws and normalizations without parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand
from .elementwise import SHAPES, chain, sum_cases, unary


def shrink(x: torch.Tensor, lambd: float = 0.5, bias: float = 0.0) -> torch.Tensor:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))


def selu(
    x: torch.Tensor, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> torch.Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.minimum(x, torch.zeros_like(x))))


def prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def prelu_cases(dtype: torch.dtype) -> list[Case]:
    pairs = [((2, 3, 4), (3, 1)), ((2, 3), (2, 3)), ((2, 3), ()), ((3, 1, 2), (1,)), ((0, 2), (2,)), ((), ())]
    return [Case((rand(*x, dtype=dtype), rand(*slope, dtype=dtype))) for x, slope in pairs]


def swish(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(alpha * x)


def swiglu_cases(dtype: torch.dtype) -> list[Case]:
    pairs = [Case((rand(*s, dtype=dtype), rand(*s, dtype=dtype))) for s in SHAPES]
    return [*pairs, Case((rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype)), {"alpha": 1.5})]


def mean(*xs: torch.Tensor) -> torch.Tensor:
    return chain(torch.add)(*xs) / len(xs)


def hardmax(x: torch.Tensor, axis: int = -1) -> torch.Tensor:
    index = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, index, torch.ones((), dtype=x.dtype).expand_as(index)) + x * 0


def hardmax_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=dtype)
    return [
        Case((x,)),
        Case((x,), {"axis": 0}),
        Case((x,), {"axis": -2}),
        Case((ties,), smooth=False),
        Case((rand(1, dtype=dtype),)),
    ]


def lp_normalization(x: torch.Tensor, axis: int = -1, p: int = 2) -> torch.Tensor:
    norm = (x * x).sum(axis, keepdim=True).sqrt() if p == 2 else x.abs().sum(axis, keepdim=True)
    return x / norm


def lp_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype, low=0.25)
    return [Case((x,), {"axis": a, "p": p}) for a in (-1, 0, 1) for p in (1, 2)] + [Case((x,))]


def mean_variance(x: torch.Tensor, axes: tuple[int, ...] = (0, 2, 3)) -> torch.Tensor:
    centered = x - x.mean(axes, keepdim=True)
    return centered / ((centered * centered).mean(axes, keepdim=True).sqrt() + 1e-9)


def mean_variance_cases(dtype: torch.dtype) -> list[Case]:
    return [Case((rand(2, 3, 4, 2, dtype=dtype),)), Case((rand(3, 5, dtype=dtype),), {"axes": [1]})]


def drawn(fill: str, first: str, second: str, defaults: tuple[float, float]):  # type: ignore[no-untyped-def]
    def reference(shape: list[int], dtype: torch.dtype = torch.float32, **parameters: float) -> torch.Tensor:
        pair = parameters.get(first, defaults[0]), parameters.get(second, defaults[1])
        value: torch.Tensor = getattr(torch.empty(shape, dtype=dtype), fill)(*pair)
        return value

    def cases(dtype: torch.dtype) -> list[Case]:
        return [
            Case((), {"shape": [3, 4], "dtype": dtype}),
            Case((), {"shape": [5], "dtype": dtype, first: 0.5, second: 2.0}),
            Case((), {"shape": [2, 0]}),
        ]

    return reference, cases


normal, normal_cases = drawn("normal_", "mean", "scale", (0.0, 1.0))
uniform, uniform_cases = drawn("uniform_", "low", "high", (0.0, 1.0))


def bernoulli(p: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(p).bernoulli_(p).to(dtype or p.dtype)


def bernoulli_cases(dtype: torch.dtype) -> list[Case]:
    p = rand(3, 4, dtype=dtype, low=0.0, high=1.0)
    return [Case((p,)), Case((p,), {"dtype": torch.int64}), Case((p,), {"dtype": torch.bool})]


def multinomial(x: torch.Tensor, sample_size: int = 1, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.multinomial(torch.softmax(x, -1), sample_size, True).to(dtype)


def multinomial_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(3, 5, dtype=dtype)
    return [Case((x,)), Case((x,), {"sample_size": 7, "dtype": torch.int64})]


def log_sum(x: torch.Tensor, axes: torch.Tensor | None = None, keepdims: int = 1) -> torch.Tensor:
    dims = list(range(x.dim())) if axes is None else axes.tolist()
    return x.sum(dims, keepdim=bool(keepdims)).log()


def log_sum_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype, low=0.25)
    axes = torch.tensor([0, -1])
    return [Case((x,)), Case((x, axes), {"keepdims": 0}, (1,)), Case((x, axes), {}, (1,)), Case((x, axes[:1]))]


TRIGONOMETRY = [
    Row("Tan", torch.tan, unary(-1.2, 1.2)),
    Row("Asin", torch.asin, unary(-0.9, 0.9)),
    Row("Acos", torch.acos, unary(-0.9, 0.9)),
    Row("Atan", torch.atan, unary()),
    Row("Sinh", torch.sinh, unary()),
    Row("Cosh", torch.cosh, unary()),
    Row("Asinh", torch.asinh, unary()),
    Row("Acosh", torch.acosh, unary(1.2, 4)),
    Row("Atanh", torch.atanh, unary(-0.9, 0.9)),
]

UNITS = [
    Row("Celu", lambda x, alpha=1.0: F.celu(x, alpha), unary()),
    Row("Celu", lambda x, alpha=1.0: F.celu(x, alpha), unary(alpha=0.5)),
    Row("Selu", selu, unary()),
    Row("Selu", selu, unary(alpha=1.5, gamma=2.0)),
    Row("Softsign", F.softsign, unary()),
    Row("ThresholdedRelu", lambda x, alpha=1.0: F.threshold(x, alpha, 0), unary()),
    Row("ThresholdedRelu", lambda x, alpha=1.0: F.threshold(x, alpha, 0), unary(alpha=-0.5)),
    Row("Shrink", shrink, unary()),
    Row("Shrink", shrink, unary(lambd=1.0, bias=0.5)),
    Row("PRelu", prelu, prelu_cases),
    Row("Swish", swish, unary(), opset=24),
    Row("Swish", swish, unary(alpha=1.5), opset=24),
    Row("SwiGLU", lambda a, b, alpha=1.0: swish(a, alpha) * b, swiglu_cases, opset=28),
    Row("Mean", mean, sum_cases),
    Row("Hardmax", hardmax, hardmax_cases),
    Row("LpNormalization", lp_normalization, lp_cases),
    Row("MeanVarianceNormalization", mean_variance, mean_variance_cases, tolerance=1e-4),
    Row("ReduceLogSum", log_sum, log_sum_cases),
]

DRAWS = [
    Row("RandomNormal", normal, normal_cases, differentiable=False),
    Row("RandomUniform", uniform, uniform_cases, differentiable=False),
    Row("Bernoulli", bernoulli, bernoulli_cases, differentiable=False),
    Row("Multinomial", multinomial, multinomial_cases, differentiable=False),
]

ROWS = TRIGONOMETRY + UNITS + DRAWS
