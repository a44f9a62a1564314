"""Rows of the operators that choose rows worth computing and carry tensors over to them (csrc/ops/index/rows.cpp)."""

from __future__ import annotations

import math

import torch

from ..table import Case, Row, ints, rand

OWN = "ai.ortmodule"
Tensor = torch.Tensor


def listed(marked: Tensor) -> Tensor:
    """The marked positions, filled up with the first others to a multiple of a step, or all from 7/8 on."""
    n, flat = marked.numel(), marked.flatten()
    quarter = 2 ** max(0, int(flat.sum()).bit_length() - 1) // 4
    step = max(1, min(math.ceil(n / 16), quarter))
    kept = min(n, max(1, math.ceil(int(flat.sum()) / step)) * step)
    if 8 * kept >= 7 * n:
        return torch.arange(n)
    spare = (~flat).nonzero().flatten()[: kept - int(flat.sum())]
    return torch.cat([flat.nonzero().flatten(), spare]).sort().values


def label_cases(dtype: torch.dtype) -> list[Case]:
    few = torch.full((40,), -100)
    few[[3, 17, 18, 39]] = ints(1, 2, 0, 5)
    many = torch.arange(40).view(4, 10)
    none = torch.full((2, 20), 7)
    chosen = [Case((few,), {"ignore_index": -100}), Case((many,), {"ignore_index": 3})]
    several = torch.where(torch.arange(400) % 19 == 0, 1, -100)
    chosen.append(Case((several,), {"ignore_index": -100}))
    return [*chosen, Case((none,), {"ignore_index": 7}), Case((few.int(),), {"ignore_index": -100})]


def attended(sizes: Tensor, *sources: Tensor, seeds: int, causal: list[int], masked: list[int]) -> Tensor:
    batch, length = sizes.tolist()
    needed = torch.zeros(batch * length, dtype=torch.bool)
    for rows in sources[:seeds]:
        needed[rows] = True
    needed = needed.view(batch, length)
    masks = iter(sources[seeds:])
    visible = torch.zeros(batch, length, length, dtype=torch.bool)
    for is_causal, is_masked in zip(causal, masked):
        sees = torch.ones(batch, 1, length, length, dtype=torch.bool)
        if is_masked:
            mask = next(masks)
            if mask.dtype != torch.bool:
                mask = mask.float()
                mask = mask >= mask.amax(-1, keepdim=True) - 1e4
            sees = sees & mask
        visible |= (sees.tril() if is_causal else sees).any(1)
    for _ in range(length):
        needed = needed | (needed[:, :, None] & visible).any(1)
    return listed(needed)


def attended_cases(dtype: torch.dtype) -> list[Case]:
    sizes, seeds = ints(3, 8), ints(1, 10, 11)
    keys = torch.arange(8) < ints(3, 6, 8)[:, None]
    additive = torch.zeros(3, 1, 1, 8).masked_fill(~keys[:, None, None], torch.finfo(torch.float32).min)
    left = torch.arange(8) >= ints(3, 6, 0)[:, None]
    window = (torch.arange(8)[:, None] - torch.arange(8)).abs() <= 1
    one = {"seeds": 1, "masked": [1]}
    return [
        Case((sizes, seeds, keys[:, None, None]), {**one, "causal": [0]}, (0,)),
        Case((sizes, seeds, additive), {**one, "causal": [0]}, (0,)),
        Case((sizes, seeds, additive.expand(3, 2, 8, 8)), {**one, "causal": [1]}, (0,)),
        Case((sizes, seeds, left[:, None, None] & window), {**one, "causal": [0]}, (0,)),
        Case((sizes, seeds, torch.where(left, 0.0, -math.inf)[:, None, None]), {**one, "causal": [0]}, (0,)),
        Case((sizes, ints(2), ints(9, 20), window), {"seeds": 2, "causal": [1, 0], "masked": [0, 1]}, (0,)),
        Case((sizes, ints(4)), {"seeds": 1, "causal": [1], "masked": [0]}, (0,)),
        Case((sizes, ints(0, 8)), {"seeds": 1, "causal": [0], "masked": [0]}, (0,)),
    ]


def gather_rows(x: Tensor, rows: Tensor, lead: int = 1) -> Tensor:
    return x.flatten(0, lead - 1)[rows] if lead > 1 else x[rows]


def gather_cases(dtype: torch.dtype) -> list[Case]:
    turned = rand(2, 3, 5, 4, dtype=dtype).transpose(1, 2)
    return [
        Case((rand(6, 3, dtype=dtype), ints(0, 2, 5))),
        Case((rand(6, dtype=dtype), ints(1, 4))),
        Case((rand(3, 4, 5, dtype=dtype), ints(0, 3, 7, 11)), {"lead": 2}),
        Case((turned, ints(0, 4, 9)), {"lead": 2}),
        Case((rand(2, 2, 3, 4, dtype=dtype), ints(1, 5, 11)), {"lead": 3}),
        Case((rand(2, 3, 4, dtype=dtype), torch.arange(6)), {"lead": 2}),
        Case((torch.arange(12).view(3, 4), ints(2, 3, 9)), {"lead": 2}),
    ]


def spread_rows(x: Tensor, rows: Tensor, sizes: Tensor, lead: int = 1) -> Tensor:
    y = x[:1].detach().expand(int(sizes.prod()), *x.shape[1:]).index_copy(0, rows, x)
    return y.view(*sizes.tolist(), *x.shape[1:])


def spread_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((rand(3, 4, dtype=dtype), ints(1, 2, 4), ints(6)), {}, (2,)),
        Case((rand(3, 4, 2, dtype=dtype), ints(0, 2, 5), ints(2, 3)), {"lead": 2}, (2,)),
        Case((rand(6, 4, dtype=dtype), torch.arange(6), ints(2, 3)), {"lead": 2}, (2,)),
    ]


def sliced_rows(rows: Tensor, sizes: Tensor, start: int) -> Tensor:
    length, kept = sizes.tolist()
    return rows // kept * length + start + rows % kept


ROWS = [
    Row(
        "LabelRows", lambda labels, ignore_index: listed(labels != ignore_index), label_cases, OWN,
        differentiable=False, bfloat16=False,
    ),
    Row("AttendedRows", attended, attended_cases, OWN, differentiable=False, bfloat16=False, symbolic=False),
    Row(
        "RelativeRows", lambda inner, outer: torch.searchsorted(outer, inner),
        lambda dtype: [Case((ints(2, 5, 9), ints(0, 2, 3, 5, 9))), Case((ints(4), ints(4)))], OWN,
        differentiable=False, bfloat16=False, refuses=True,
    ),
    Row(
        "SlicedRows", sliced_rows, lambda dtype: [Case((ints(0, 4, 5, 13), ints(6, 5)), {"start": 1}, (1,))], OWN,
        differentiable=False, bfloat16=False,
    ),
    Row("GatherRows", gather_rows, gather_cases, OWN, grads=(0,)),
    Row("SpreadRows", spread_rows, spread_cases, OWN, grads=(0,), smooth=False),
]  # fmt: skip
