"""Rows of operators that read or write by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand, scalar

OWN = "ai.ortmodule"


def gather(x: torch.Tensor, indices: torch.Tensor, axis: int = 0) -> torch.Tensor:
    key: list[Any] = [slice(None)] * x.dim()
    key[axis] = indices.long()
    return x[tuple(key)] * 1


def gather_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(4, 3, 2, dtype=dtype)
    return [
        Case((rand(5, 3, dtype=dtype), ints(1, 1, 0, 4))),
        Case((rand(5, 3, dtype=dtype), torch.tensor([[1, -1], [0, 1]]))),
        Case((x, ints(3, 0, 3)), {"axis": 0}),
        Case((x, torch.tensor([[2, 0], [1, 2]])), {"axis": 1}),
        Case((x, ints(1, -2, 1)), {"axis": -1}),
        Case((x, scalar(2)), {"axis": 1}, (1,)),
        Case((x, scalar(-1)), {"axis": 0}, (1,)),
        Case((x, scalar(1)), {"axis": 1}),
        Case((x, torch.tensor([0, 2], dtype=torch.int32)), {"axis": 0}),
        Case((x, ints()), {"axis": 1}),
        Case((rand(4, dtype=dtype), ints(0, 3)), {}, (1,)),
    ]


def embedding(weight: torch.Tensor, ids: torch.Tensor, padding_idx: int = -1) -> torch.Tensor:
    return F.embedding(ids, weight, padding_idx if padding_idx >= 0 else None)


def embedding_cases(dtype: torch.dtype) -> Sequence[Case]:
    weight, ids = rand(5, 3, dtype=dtype), torch.tensor([[1, 0, 4], [0, 0, 2]])
    return [Case((weight, ids), {"padding_idx": p}, smooth=p < 0) for p in (0, 4, -1)] + [Case((weight, scalar(2)))]


def wrapped(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.where(indices < 0, indices + x.size(axis), indices)


def gather_elements(x: torch.Tensor, indices: torch.Tensor, axis: int = 0) -> torch.Tensor:
    return x.gather(axis, wrapped(x, indices, axis))


def gather_elements_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)
    return [
        Case((x, torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]]))),
        Case((x, torch.tensor([[3], [0], [-1]])), {"axis": 1}),
        Case((x, torch.tensor([[3, 3], [0, 1], [2, 2]])), {"axis": -1}),
    ]


def scatter_elements(
    x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int = 0, reduction: str = "none"
) -> torch.Tensor:
    positions = wrapped(x, indices, axis)
    if reduction == "none":
        return x.scatter(axis, positions, updates)
    how = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return x.scatter_reduce(axis, positions, updates, how)


def scatter_elements_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, distinct = rand(3, 4, dtype=dtype), torch.tensor([[1, 0], [2, -1], [0, 1]])
    repeated = torch.tensor([[1, 1], [2, 2], [0, 1]])
    return [
        Case((x, distinct, rand(3, 2, dtype=dtype)), {"axis": 1}),
        Case((x, distinct.abs(), rand(3, 2, dtype=dtype)), {"axis": -1, "reduction": "none"}),
        Case((x, repeated, rand(3, 2, dtype=dtype)), {"axis": 1, "reduction": "add"}),
        Case((x, torch.tensor([[0, 2, 1, 0]]), rand(1, 4, dtype=dtype)), {"axis": 0, "reduction": "add"}),
    ]


def tuples(x: torch.Tensor, indices: torch.Tensor, batch_dims: int = 0) -> tuple[torch.Tensor, ...]:
    key = []
    for b in range(batch_dims):
        key.append(torch.arange(x.size(b)).view([-1 if i == b else 1 for i in range(indices.dim() - 1)]))
    return (*key, *indices.unbind(-1))


def gather_nd(x: torch.Tensor, indices: torch.Tensor, batch_dims: int = 0) -> torch.Tensor:
    return x[tuples(x, indices, batch_dims)]


def gather_nd_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x, torch.tensor([[0, 1], [1, -1], [0, 1]]))),
        Case((x, torch.tensor([[[0, 1, 2]], [[1, 0, 3]]]))),
        Case((x, torch.tensor([[1], [2]])), {"batch_dims": 1}),
        Case((x, torch.tensor([[[1, 3]], [[2, 0]]])), {"batch_dims": 1}),
    ]


def scatter_nd(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduction: str = "none") -> torch.Tensor:
    return x.index_put(tuples(x, indices), updates, accumulate=reduction == "add")


def scatter_nd_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)
    return [
        Case((x, torch.tensor([[2], [0]]), rand(2, 4, dtype=dtype))),
        Case((x, torch.tensor([[0, 1], [0, 1], [2, 3]]), rand(3, dtype=dtype)), {"reduction": "add"}),
    ]


def advanced(x: torch.Tensor, dims: Sequence[int], indices: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * x.dim()
    for d, i in zip(dims, indices):
        key[d] = i
    return tuple(key)


def index(x: torch.Tensor, *indices: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return x[advanced(x, dims, indices)]


def index_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, i, j = rand(3, 4, 5, dtype=dtype), ints(0, 2, 0), ints(1, -1, 1)
    return [
        Case((x, i, j), {"dims": [0, 1]}),
        Case((x, i, j), {"dims": [1, 2]}),
        Case((x, i, j), {"dims": [0, 2]}),
        Case((x, torch.tensor([[0], [1]]), ints(0, 3)), {"dims": [0, 1]}),
        Case((x, i, j, ints(4, 4, 4)), {"dims": [0, 1, 2]}),
        Case((x, i), {"dims": [-1]}),
    ]


def index_put(
    x: torch.Tensor, values: torch.Tensor, *indices: torch.Tensor, dims: Sequence[int], accumulate: int = 0
) -> torch.Tensor:
    key = [None] * x.dim()
    for d, i in zip(dims, indices):
        key[d] = i
    while key and key[-1] is None:
        key.pop()
    return torch.ops.aten.index_put(x, key, values, bool(accumulate))


def index_put_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, 5, dtype=dtype)
    return [
        Case((x, rand(2, 5, dtype=dtype), ints(0, 2), ints(1, 1)), {"dims": [0, 1]}),
        Case((x, rand(2, 5, dtype=dtype), ints(0, 0), ints(1, 1)), {"dims": [0, 1], "accumulate": 1}),
        Case((x, rand(dtype=dtype), ints(0, 2)), {"dims": [1]}),
        Case((x, rand(5, dtype=dtype), ints(0, 2), ints(3, 1)), {"dims": [0, 1], "accumulate": 1}),
    ]


def gather_grad(
    dy: torch.Tensor, indices: torch.Tensor, sizes: torch.Tensor, base: torch.Tensor | None = None, axis: int = 0
) -> torch.Tensor:
    sums = torch.zeros(sizes.tolist(), dtype=dy.dtype) if base is None else base.clone()
    rows = dy.reshape([*sums.shape[:axis], indices.numel(), *sums.shape[axis + 1 :]])
    return sums.index_add(axis, indices.flatten() % sums.shape[axis], rows)


def gather_grad_cases(dtype: torch.dtype) -> Sequence[Case]:
    table, rows = ints(5, 3), torch.tensor([[4, 0], [4, -1]])
    deep, columns = ints(2, 4, 3), ints(1, -1, 1)
    return [
        Case((rand(2, 2, 3, dtype=dtype), rows, table), {}, (2,)),
        Case((rand(2, 2, 3, dtype=dtype), rows, table, rand(5, 3, dtype=dtype)), {}, (2,)),
        Case((rand(2, 3, 3, dtype=dtype), columns, deep, rand(2, 4, 3, dtype=dtype)), {"axis": 1}, (2,)),
        Case((rand(4, 3, dtype=dtype), scalar(1), deep, rand(2, 4, 3, dtype=dtype)), {}, (1, 2)),
        Case((rand(3, 3, dtype=dtype), columns.int(), table, rand(5, 3, dtype=dtype)), {}, (2,)),
    ]


def embedding_grad(
    dy: torch.Tensor,
    ids: torch.Tensor,
    sizes: torch.Tensor,
    base: torch.Tensor | None = None,
    padding_idx: int = -1,
) -> torch.Tensor:
    return gather_grad(dy.masked_fill((ids == padding_idx).unsqueeze(-1), 0), ids, sizes, base)


def embedding_grad_cases(dtype: torch.dtype) -> Sequence[Case]:
    sizes, ids = ints(5, 3), torch.tensor([[4, 0], [4, 2]])
    return [
        Case((rand(2, 2, 3, dtype=dtype), ids, sizes), {"padding_idx": 2}, (2,)),
        Case((rand(2, 2, 3, dtype=dtype), ids, sizes, rand(5, 3, dtype=dtype)), {"padding_idx": 4}, (2,)),
        Case((rand(2, 2, 3, dtype=dtype), ids.int(), sizes, rand(5, 3, dtype=dtype)), {}, (2,)),
    ]


def topk(
    x: torch.Tensor, k: torch.Tensor, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.topk(x, int(k), axis, bool(largest), bool(sorted)))


def topk_cases(dtype: torch.dtype) -> Sequence[Case]:
    # Distinct values, so that the positions are determined.
    x = (torch.randperm(20).view(4, 5).to(torch.float64) / 4).to(dtype)
    return [
        Case((x, ints(2)), {}, (1,), 2),
        Case((x, ints(3)), {"axis": 0, "largest": 0}, (1,), 2),
        Case((x, ints(1)), {"axis": 1}, (), 2),
        Case((x, ints(2)), {}, (1,), 1),
    ]


def sort(x: torch.Tensor, axis: int = -1, descending: int = 0, stable: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.sort(x, dim=axis, descending=bool(descending), stable=bool(stable)))


def sort_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = (torch.randperm(20).view(4, 5).to(torch.float64) / 4).to(dtype)
    ties = torch.tensor([[1, 0, 1, 0], [2, 2, 2, 2]], dtype=dtype)
    return [
        Case((x,), {}, (1,), 2),
        Case((x,), {"axis": 0, "descending": 1}, (1,), 2),
        Case((ties,), {"stable": 1}, (1,), 2, smooth=False),
        Case((ties,), {"stable": 1, "descending": 1}, (1,), 2, smooth=False),
    ]


def histogram(x: torch.Tensor, bins: int, low: float, high: float) -> torch.Tensor:
    return torch.histc(x.float(), bins, low, high).to(x.dtype)


def histogram_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[0, 1, 3, 3], [4, -1, 2.5, 3]], dtype=dtype)
    return [Case((x,), {"bins": 4, "low": 0.0, "high": 3.0}), Case((x,), {"bins": 2, "low": -1.0, "high": 4.0})]


def one_hot(indices: torch.Tensor, depth: torch.Tensor, values: torch.Tensor, axis: int = -1) -> torch.Tensor:
    n = int(depth)
    hot = (indices.unsqueeze(-1) % n == torch.arange(n)) & (indices.unsqueeze(-1) < n)
    return torch.where(hot.movedim(-1, axis), values[1], values[0])


def one_hot_cases(dtype: torch.dtype) -> Sequence[Case]:
    indices, values = torch.tensor([[0, 2, 1], [3, -1, 7]]), torch.tensor([0.5, 2.0], dtype=dtype)
    return [
        Case((indices, scalar(4), values), {}, (1,)),
        Case((indices, scalar(4), values), {"axis": 0}, (1, 2)),
        Case((indices, scalar(4), values), {"axis": 1}),
    ]


def nonzero_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, -1.0]], dtype=dtype)
    return [Case((x,)), Case((x == 9,)), Case((torch.tensor([True, False, True]),))]


def positions_cases(_: torch.dtype) -> Sequence[Case]:
    return [Case((ints(0, 3, 2**62),)), Case((torch.tensor([[1, 0]], dtype=torch.int32),)), Case((ints(),))]


ROWS = [
    Row("NonNegative", lambda positions: positions.clone(), positions_cases, OWN, differentiable=False),
    Row("Gather", gather, gather_cases),
    Row("Embedding", embedding, embedding_cases, OWN),
    Row("GatherGrad", gather_grad, gather_grad_cases, OWN, differentiable=False, no_forms=("size",)),
    Row("EmbeddingGrad", embedding_grad, embedding_grad_cases, OWN, differentiable=False, no_forms=("size",)),
    Row("GatherElements", gather_elements, gather_elements_cases),
    Row("ScatterElements", scatter_elements, scatter_elements_cases),
    Row("GatherND", gather_nd, gather_nd_cases, refuses=True),
    Row("ScatterND", scatter_nd, scatter_nd_cases, refuses=True),
    Row("Index", index, index_cases, OWN),
    Row("IndexPut", index_put, index_put_cases, OWN),
    Row("TopK", topk, topk_cases),
    Row("TopK", topk, topk_cases, OWN),
    Row("Sort", sort, sort_cases, OWN),
    Row("Histogram", histogram, histogram_cases, OWN, differentiable=False, bfloat16=False),
    Row("OneHot", one_hot, one_hot_cases),
    Row("NonZero", lambda x: x.nonzero().t(), nonzero_cases, differentiable=False),
]
