"""Rows of reductions, positions of extremes and scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..table import Case, Row, ints, rand, scalar


def reduction(
    compute: Callable[[torch.Tensor, list[int], bool], torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """ONNX's treatment of axes around compute(x, dims, keepdim), which is never given an empty list."""

    def apply(
        x: torch.Tensor, axes: torch.Tensor | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> torch.Tensor:
        dims = [] if axes is None else axes.tolist()
        if not dims and noop_with_empty_axes:
            return compute(x.unsqueeze(-1), [-1], False)
        return compute(x, dims or list(range(x.dim())), bool(keepdims))

    return apply


def product(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    for d in sorted((d % x.dim() for d in dims), reverse=True):
        x = x.prod(d, keepdim=keep)
    return x * 1


def cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x, ints(1)), {"keepdims": 0}, (1,)),
        Case((x, ints(-1, 0)), {"keepdims": 1}, (1,)),
        Case((x, ints(0, -2)), {"keepdims": 0}, (1,)),
        Case((x, ints(2, 0)), {"keepdims": 0}),
        Case((x,), {"keepdims": 0}),
        Case((x,)),
        Case((x, ints()), {"noop_with_empty_axes": 1}, (1,)),
        Case((rand(2, 1, 4, dtype=dtype), ints(1)), {}, (1,)),
        Case((rand(dtype=dtype),), {"keepdims": 0}),
    ]


def with_empty(dtype: torch.dtype) -> Sequence[Case]:
    return [*cases(dtype), Case((rand(0, 3, dtype=dtype), ints(0)), {"keepdims": 0}, (1,))]


def with_ties(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=dtype)
    return [*cases(dtype), Case((x, ints(1)), {"keepdims": 0}, (1,), smooth=False)]


def with_zeros(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0], [2.0, -1.0, 3.0]], dtype=dtype)
    return [*cases(dtype), *[Case((x, ints(d)), {"keepdims": 0}, (1,)) for d in (0, 1)]]


def zero_rows(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype)
    return [*cases(dtype), Case((x, ints(1)), {"keepdims": 0}, (1,))]


def arg_extreme(find: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(x: torch.Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> torch.Tensor:
        if not select_last_index:
            return find(x, axis, bool(keepdims))
        return x.size(axis) - 1 - find(x.flip(axis), axis, bool(keepdims))

    return apply


def arg_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=dtype)
    keys: list[dict[str, Any]] = [
        {},
        {"axis": -1, "keepdims": 0},
        {"axis": 1, "select_last_index": 1},
        {"axis": 0, "keepdims": 0, "select_last_index": 1},
    ]
    return [Case((x,), k) for k in keys]


def cumsum(x: torch.Tensor, axis: torch.Tensor, exclusive: int = 0, reverse: int = 0) -> torch.Tensor:
    d = int(axis)
    y = x.flip(d) if reverse else x
    y = y.cumsum(d)
    if exclusive:
        y = torch.cat([torch.zeros_like(y.narrow(d, 0, 1)), y.narrow(d, 0, y.size(d) - 1)], d)
    return y.flip(d) if reverse else y


def cumsum_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, dtype=dtype)
    flags = [(0, 0), (1, 0), (0, 1), (1, 1)]
    return [Case((x, scalar(a)), {"exclusive": e, "reverse": r}, (1,)) for a in (0, -1) for e, r in flags] + [
        Case((x, scalar(1)))
    ]


def sum_to_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    targets = [(2, 3, 4), (3, 4), (1, 4), (3, 1), (2, 1, 4), ()]
    return [Case((x, ints(*t)), {}, constants) for t in targets for constants in ((1,), ())]


ROWS = [
    Row("ReduceSum", reduction(lambda x, d, k: x.sum(d, keepdim=k)), with_empty),
    Row("ReduceMean", reduction(lambda x, d, k: x.mean(d, keepdim=k)), cases),
    Row("ReduceMax", reduction(lambda x, d, k: x.amax(d, keepdim=k)), with_ties),
    Row("ReduceMin", reduction(lambda x, d, k: x.amin(d, keepdim=k)), with_ties),
    Row("ReduceProd", reduction(product), with_zeros),
    Row("ReduceL1", reduction(lambda x, d, k: x.abs().sum(d, keepdim=k)), cases),
    Row("ReduceL2", reduction(lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k)), zero_rows),
    Row("ReduceSumSquare", reduction(lambda x, d, k: (x * x).sum(d, keepdim=k)), with_empty),
    Row("ReduceLogSumExp", reduction(lambda x, d, k: x.logsumexp(d, keepdim=k)), cases),
    Row("ReduceSumTo", lambda x, sizes: x.sum_to_size(tuple(sizes.tolist())) * 1, sum_to_cases, "ai.ortmodule"),
    Row("ArgMax", arg_extreme(torch.argmax), arg_cases, differentiable=False),
    Row("ArgMin", arg_extreme(torch.argmin), arg_cases, differentiable=False),
    Row("CumSum", cumsum, cumsum_cases),
]
