"""Rows of operators that make tensors from sizes, numbers and the random generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..table import Case, Row, ints, rand, scalar


def constant_of_shape(sizes: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
    return torch.full(tuple(sizes.tolist()), 0.0) if value is None else value.expand(tuple(sizes.tolist())).clone()


def constant_of_shape_cases(dtype: torch.dtype) -> Sequence[Case]:
    values = [torch.tensor([v], dtype=dtype) for v in (0.0, -1.5)]
    values += [torch.tensor([2**62 + 1]), torch.tensor([True]), torch.tensor([3], dtype=torch.int32)]
    return [
        *[Case((ints(2, 3),), {"value": v}, (0,)) for v in values],
        Case((ints(),), {}, (0,)),
        Case((ints(0, 2),)),
    ]


def range_cases(dtype: torch.dtype) -> Sequence[Case]:
    spans = [(0, 5, 1), (2, 9, 3), (5, 0, -2), (3, 3, 1), (4, 1, 1)]
    whole = [Case(tuple(scalar(v) for v in s), {}, k) for s in spans for k in ((0, 1, 2), ())]
    return whole + [Case(tuple(torch.tensor(v, dtype=dtype) for v in (0.5, 3.0, 0.5)), {}, (0, 1, 2))]


def arange(start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    if (limit - start) * delta <= 0:
        return torch.empty(0, dtype=start.dtype)
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def constant(**attributes: Any) -> torch.Tensor:
    ((name, value),) = attributes.items()
    if name == "value":
        return value
    return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)


def constant_cases(dtype: torch.dtype) -> Sequence[Case]:
    keys: list[dict[str, Any]] = [
        {"value": rand(2, 3, dtype=dtype)},
        {"value_float": 1.5},
        {"value_floats": [1.5, 2.0]},
        {"value_int": 7},
        {"value_ints": [1, 2, 3]},
    ]
    return [Case((), k) for k in keys]


def sizes(*bindings: torch.Tensor, exprs: Sequence[str], symbols: Sequence[str] = (), scalar: int = 0) -> torch.Tensor:
    table = {name: int(value) for name, value in zip(symbols, bindings)}
    values = [eval(e, {"Max": max, "Min": min}, table) for e in exprs]
    return torch.tensor(values[0] if scalar else values, dtype=torch.int64)


def sizes_cases(_: torch.dtype) -> Sequence[Case]:
    return [
        Case((), {"exprs": ["3", "2*4"]}),
        Case((), {"exprs": ["5"], "scalar": 1}),
        Case((scalar(3), scalar(4)), {"exprs": ["u0*(u1 + 2)//3", "Max(u0, u1)", "u0 - u1"], "symbols": ["u0", "u1"]}),
        Case((scalar(3),), {"exprs": ["2*u0 + 1"], "symbols": ["u0"], "scalar": 1}),
    ]


def uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype or x.dtype).uniform_(low, high)


def normal(x: torch.Tensor, mean: float = 0.0, scale: float = 1.0, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype or x.dtype).normal_(mean, scale)


def random_cases(**attributes: float) -> Any:
    def cases(dtype: torch.dtype) -> Sequence[Case]:
        x = rand(3, 40, dtype=dtype)
        return [Case((x,)), Case((x,), dict(attributes)), Case((x,), {"dtype": torch.float64})]

    return cases


def eye_like(x: torch.Tensor, k: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
    rows, columns = torch.arange(x.size(0)).unsqueeze(1), torch.arange(x.size(1))
    return (columns - rows == k).to(dtype or x.dtype)


def eye_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)
    return [Case((x,)), Case((x,), {"k": 1}), Case((x,), {"k": -2, "dtype": torch.int64}), Case((x,), {"k": 9})]


ROWS = [
    Row("ConstantOfShape", constant_of_shape, constant_of_shape_cases, differentiable=False),
    Row("Range", arange, range_cases, differentiable=False),
    Row("Constant", constant, constant_cases, differentiable=False),
    Row("Sizes", sizes, sizes_cases, "ai.ortmodule", differentiable=False),
    Row("RandomUniformLike", uniform, random_cases(low=-1.0, high=3.0), differentiable=False),
    Row("RandomNormalLike", normal, random_cases(mean=1.0, scale=0.5), differentiable=False),
    Row("EyeLike", eye_like, eye_cases, differentiable=False),
]
