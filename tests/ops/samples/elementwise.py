"""Rows of elementwise operators and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand

OWN = "ai.ortmodule"
SHAPES = [(3, 4), (), (1,), (0, 3), (2, 1, 5)]
SIGNS = ([1, -1, 1, -1], [1, 1, -1, -1])
PAIRS = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1, 4), (3, 1)),
    ((2, 3), ()),
    ((), (3,)),
    ((0, 3), (1, 3)),
    ((1,), (1,)),
]


def answers(dtype: torch.dtype) -> Sequence[Case]:
    known = [Case((torch.full(s, e != 0),), {"expected": e, "question": "x"}) for s in ((), (1,)) for e in (0, 1)]
    return [*known, Case((torch.tensor([2.0], dtype=dtype),), {"expected": 1})]


def unary(low: float = -2.0, high: float = 2.0, **attributes: object) -> Callable[[torch.dtype], Sequence[Case]]:
    return lambda dtype: [Case((rand(*s, dtype=dtype, low=low, high=high),), dict(attributes)) for s in SHAPES]


def gelu_cases(**attributes: object) -> Callable[[torch.dtype], Sequence[Case]]:
    def cases(dtype: torch.dtype) -> list[Case]:
        # The kernels convert elements of 16 bits a block at a time: here are several blocks, the last one short.
        blocks = Case((rand(3, 700, dtype=dtype, low=-4, high=4),), dict(attributes))
        return [*unary(-4, 4, **attributes)(dtype), blocks]

    return cases


def binary(
    low: float = -2.0, high: float = 2.0, dtype: torch.dtype | None = None, **attributes: object
) -> Callable[[torch.dtype], Sequence[Case]]:
    def cases(floating: torch.dtype) -> list[Case]:
        kind = dtype or floating
        out = [Case((rand(*a, dtype=kind), rand(*b, dtype=kind, low=low, high=high)), attributes) for a, b in PAIRS]
        # A constant operand, as Python scalars become.
        out.append(Case((rand(2, 3, dtype=kind), rand(dtype=kind, low=low, high=high)), attributes, (1,)))
        return out

    return cases


def signed_pairs(floating: torch.dtype) -> list[Case]:
    """Pairs of one size are far from 0 and of all four signs; others broadcast."""
    far = rand(4, 4, low=0.5, high=2), rand(4, 4, low=0.5, high=2)
    a, b = (x.to(floating) * torch.tensor(s, dtype=floating) for x, s in zip(far, SIGNS, strict=True))
    return [Case((a, b)), *binary(0.5, 2)(floating)]


def products_with_logarithms(floating: torch.dtype) -> list[Case]:
    zeros = torch.tensor([0.0, 1.5, 0.0], dtype=floating), torch.tensor([2.0, 0.5, 0.5], dtype=floating)
    return [Case(zeros), *binary(0.5, 2)(floating)]


def with_ties(floating: torch.dtype) -> list[Case]:
    a = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 4.0]], dtype=floating)
    b = torch.tensor([[1.0, 3.0, 2.0], [-1.0, 5.0, 4.0]], dtype=floating)
    row = torch.tensor([1.0, 0.0, 4.0], dtype=floating)
    mixed = tuple(rand(*s, dtype=floating) for s in ((2, 3), (3,), (4, 1, 3)))
    return [
        Case((a, b)),
        Case((a, row)),
        Case((a, b, row), smooth=False),
        Case((a,)),
        Case((a, torch.tensor(1.0, dtype=floating))),
        Case(mixed),
    ]


def chain(pair: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(*xs: torch.Tensor) -> torch.Tensor:
        out = xs[0] * 1
        for x in xs[1:]:
            out = pair(out, x)
        return out

    return apply


def elu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return F.elu(x, alpha)


def hard_sigmoid(x: torch.Tensor, alpha: float = 0.2, beta: float = 0.5) -> torch.Tensor:
    return F.hardtanh(x * alpha + beta, 0, 1)


def quick_gelu(x: torch.Tensor, alpha: float = 1.702) -> torch.Tensor:
    return x * torch.sigmoid(alpha * x)


def clip(x: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None) -> torch.Tensor:
    return x * 1 if low is None and high is None else torch.clamp(x, low, high)


def clip_cases(dtype: torch.dtype) -> list[Case]:
    x = torch.tensor([[-3.0, -1.0, 0.25], [1.0, 0.5, 7.0]], dtype=dtype)
    low, high = torch.tensor(-1.0, dtype=dtype), torch.tensor(1.0, dtype=dtype)
    inner = torch.tensor(-0.9, dtype=dtype)
    return [
        Case((x, low, high), constants=(1, 2), smooth=False),
        Case((x, low, high), smooth=False),
        Case((x, None, high), constants=(2,), smooth=False),
        Case((x, low), smooth=False),
        Case((x, high, low), smooth=False),
        Case((x,)),
        Case((x, inner, -inner)),
        Case((x, None, -inner)),
    ]


def pow_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, dtype=dtype, low=0.5)
    exponents = [torch.tensor(e, dtype=dtype) for e in (2.0, 3.0, 0.5, 1.0, 0.0, -1.0, 2.5)]
    zeros = torch.tensor([0.0, 0.0, 2.0], dtype=dtype)
    return [
        *[Case((x, e), constants=(1,)) for e in exponents],
        Case((x, rand(3, dtype=dtype))),
        Case((zeros, torch.tensor([0.0, 2.0, 1.5], dtype=dtype)), smooth=False),
        Case((x, torch.tensor(3, dtype=torch.int64))),
    ]


def cast_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, dtype=dtype, low=-4, high=4)
    wide = torch.float64 if dtype != torch.float64 else torch.float32
    kinds = (dtype, wide, torch.bfloat16, torch.int64, torch.bool)
    return [Case((x,), {"to": k}, smooth=k == dtype) for k in kinds] + [
        Case((rand(3, dtype=torch.int32),), {"to": dtype})
    ]


def where_cases(dtype: torch.dtype) -> list[Case]:
    mask = rand(2, 3, dtype=torch.bool)
    return [
        Case((mask, rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype))),
        Case((mask, torch.tensor(0.0, dtype=dtype), rand(4, 1, 3, dtype=dtype)), constants=(1,)),
        Case((mask, rand(3, dtype=dtype), rand(2, 1, dtype=dtype))),
        Case((torch.ones(0, 2, dtype=torch.bool), rand(2, dtype=dtype), rand(1, dtype=dtype))),
    ]


def add_all(*xs: torch.Tensor, value: int) -> tuple[torch.Tensor, ...]:
    return tuple(x + value for x in xs)


def add_all_cases(dtype: torch.dtype) -> list[Case]:
    counters = tuple(torch.randint(100, shape) for shape in ((), (3,), (2, 1)))
    return [Case(counters, {"value": 1}, outputs=3), Case(counters[:1], {"value": -2}, outputs=1)]


def sum_cases(dtype: torch.dtype) -> list[Case]:
    def some(*shapes: tuple[int, ...]) -> Case:
        return Case(tuple(rand(*s, dtype=dtype) for s in shapes))

    return [
        some((2, 3)),
        some((2, 3), (2, 3)),
        some((2, 3), (2, 3), (2, 3)),
        some((3,), (2, 3), ()),
        some((0, 2), (2,)),
    ]


def compare_cases(dtype: torch.dtype) -> list[Case]:
    return [*with_ties(dtype)[:2], Case((rand(3, dtype=torch.int64), rand(3, dtype=torch.int64)))]


def logic_cases(_: torch.dtype) -> list[Case]:
    return [Case((rand(*a, dtype=torch.bool), rand(*b, dtype=torch.bool))) for a, b in PAIRS]


def special_cases(dtype: torch.dtype) -> list[Case]:
    inf = float("inf")
    return [Case((torch.tensor([[1.0, inf, -inf], [float("nan"), 0.0, -1.0]], dtype=dtype),))]


def is_inf(x: torch.Tensor, detect_negative: int = 1, detect_positive: int = 1) -> torch.Tensor:
    return (x.isposinf() & bool(detect_positive)) | (x.isneginf() & bool(detect_negative))


def is_inf_cases(dtype: torch.dtype) -> list[Case]:
    x = special_cases(dtype)[0].inputs
    both = [(1, 1), (0, 1), (1, 0), (0, 0)]
    return [Case(x, {"detect_negative": n, "detect_positive": p}) for n, p in both] + [Case(x)]


def with_value_cases(dtype: torch.dtype) -> list[Case]:
    return [Case((rand(*s, dtype=dtype), rand(*s, dtype=dtype))) for s in SHAPES]


UNARY = [
    Row("Relu", torch.relu, unary()),
    Row("Gelu", F.gelu, gelu_cases()),
    Row("Gelu", F.gelu, gelu_cases(approximate="tanh")),
    Row("Silu", F.silu, unary(-4, 4), OWN),
    Row("QuickGelu", quick_gelu, unary(-4, 4), "com.microsoft"),
    Row("QuickGelu", quick_gelu, unary(-4, 4, alpha=1.5), "com.microsoft"),
    Row("Mish", F.mish, unary(-4, 4)),
    Row("Tanh", torch.tanh, unary()),
    Row("Sigmoid", torch.sigmoid, unary()),
    Row("Softplus", F.softplus, unary(-30, 30)),
    Row("LeakyRelu", lambda x, alpha=0.01: F.leaky_relu(x, alpha), unary()),
    Row("LeakyRelu", lambda x, alpha=0.01: F.leaky_relu(x, alpha), unary(alpha=0.25)),
    Row("Elu", elu, unary()),
    Row("Elu", elu, unary(alpha=0.5)),
    Row("HardSigmoid", hard_sigmoid, unary(-4, 4)),
    Row("HardSigmoid", hard_sigmoid, unary(-4, 4, alpha=0.25, beta=0.375)),
    Row("HardSwish", F.hardswish, unary(-4, 4)),
    Row("HardTanh", F.hardtanh, unary(-4, 4, min_val=-1.5, max_val=2.0), OWN),
    Row("Exp", torch.exp, unary()),
    Row("Expm1", torch.expm1, unary(-2, 2), OWN),
    Row("Log", torch.log, unary(0.1, 4)),
    Row("Log1p", torch.log1p, unary(-0.5, 4), OWN),
    Row("Log2", torch.log2, unary(0.1, 4), OWN),
    Row("Log10", torch.log10, unary(0.1, 4), OWN),
    Row("Exp2", torch.exp2, unary(-2, 2), OWN),
    Row("Sqrt", torch.sqrt, unary(0.1, 4)),
    Row("Rsqrt", torch.rsqrt, unary(0.1, 4), OWN),
    Row("Reciprocal", torch.reciprocal, unary(0.5, 4)),
    Row("Neg", torch.neg, unary()),
    Row("Abs", torch.abs, unary()),
    Row("Sign", torch.sign, unary()),
    Row("Cos", torch.cos, unary()),
    Row("Sin", torch.sin, unary()),
    Row("Erf", torch.erf, unary()),
    Row("Floor", torch.floor, unary()),
    Row("Ceil", torch.ceil, unary()),
    Row("Round", torch.round, unary(-4, 4)),
    Row("Identity", lambda x: x * 1, unary()),
    Row("Copy", lambda x: x * 1, unary(), OWN),
    Row("StopGradient", lambda x: x * 1, unary(), OWN, differentiable=False),
    Row("Expect", lambda answer, **_: answer.clone(), answers, OWN, differentiable=False),
    Row("WithValue", lambda value, history: history + (value - history).detach(), with_value_cases, OWN, smooth=False),
]

BINARY = [
    Row("Add", torch.add, binary()),
    Row("Sub", torch.sub, binary()),
    Row("Mul", torch.mul, binary()),
    Row("Div", torch.div, binary(0.5, 3)),
    Row("Div", lambda a, b: torch.div(a, b, rounding_mode="trunc"), binary(1, 5, torch.int64), differentiable=False),
    Row("Pow", torch.pow, pow_cases),
    Row("Mod", lambda a, b, fmod: torch.fmod(a, b), binary(0.5, 2, fmod=1), wide=True),
    Row("Mod", torch.remainder, binary(1, 5, torch.int64), differentiable=False),
    Row("FloorDiv", lambda a, b: torch.div(a, b, rounding_mode="floor"), binary(0.5, 3), OWN),
    Row("FloorDiv", lambda a, b: a // b, binary(1, 4, torch.int64), OWN, differentiable=False),
    Row("Atan2", torch.atan2, signed_pairs, OWN),
    Row("Hypot", torch.hypot, signed_pairs, OWN),
    Row("LogAddExp", torch.logaddexp, signed_pairs, OWN),
    Row("XLogY", torch.xlogy, products_with_logarithms, OWN),
    Row("Max", chain(torch.maximum), with_ties),
    Row("Min", chain(torch.minimum), with_ties),
    Row("Sum", chain(torch.add), sum_cases),
    Row("AddAll", add_all, add_all_cases, "ai.ortmodule", differentiable=False),
    Row("Where", torch.where, where_cases),
    Row("Clip", clip, clip_cases),
    Row("Cast", lambda x, to: x.to(to) * 1 if to.is_floating_point else x.to(to), cast_cases),
    Row("BitwiseAnd", torch.bitwise_and, binary(0, 7, torch.int64), differentiable=False),
    Row("BitwiseOr", torch.bitwise_or, binary(0, 7, torch.int32), differentiable=False),
    Row("BitwiseXor", torch.bitwise_xor, binary(0, 7, torch.int64), differentiable=False),
    Row("BitwiseNot", torch.bitwise_not, lambda _: [Case((rand(2, 3, dtype=torch.int64),))], differentiable=False),
]

COMPARE = [
    Row("Equal", torch.eq, compare_cases, differentiable=False),
    Row("Less", torch.lt, compare_cases, differentiable=False),
    Row("LessOrEqual", torch.le, compare_cases, differentiable=False),
    Row("Greater", torch.gt, compare_cases, differentiable=False),
    Row("GreaterOrEqual", torch.ge, compare_cases, differentiable=False),
    Row("And", torch.logical_and, logic_cases, differentiable=False),
    Row("Or", torch.logical_or, logic_cases, differentiable=False),
    Row("Xor", torch.logical_xor, logic_cases, differentiable=False),
    Row("Not", torch.logical_not, lambda _: [Case((rand(2, 3, dtype=torch.bool),))], differentiable=False),
    Row("IsNaN", torch.isnan, special_cases, differentiable=False),
    Row("IsInf", is_inf, is_inf_cases, differentiable=False),
]

ROWS = UNARY + BINARY + COMPARE
