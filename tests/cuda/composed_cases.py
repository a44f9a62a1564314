"""Operators whose CUDA kernels stand around ATen's: the chunked loss with its products, attention, wide gradients.

Flash attention and cuDNN's are the stand-in's own (tests/device/guarded_device/attention.cpp), which check the saved
log-sum-exp.
Not here: how a case is run (cases.py).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .cases import Case, Operands


def loss_operands(rows: int, width: int, classes: int, dtype: torch.dtype) -> Operands:
    labels = torch.randint(classes, (rows,))
    labels[::5] = -100
    x, w = torch.randn(rows, width, dtype=torch.float64), torch.randn(classes, width, dtype=torch.float64)
    return [x.to(dtype), (w * 0.2).to(dtype), None, labels]


def losses() -> list[Case]:
    made = []
    # One chunk and several; classes that are no multiple of a vector; rows that are not held.
    for rows, classes, chunk in ((7, 33, 0), (20, 50, 250), (3, 9000, 0)):
        for reduction in ("mean", "sum"):
            made.append(Case(
                f"LinearCrossEntropy {rows}x{classes} {reduction}", "LinearCrossEntropy",
                lambda d, r=rows, c=classes: loss_operands(r, 16, c, d),
                lambda x, w, _, labels, r=reduction: F.cross_entropy(x @ w.mT, labels, reduction=r),
                ("chunk_loss",), "ai.ortmodule",
                {"reduction": reduction, "ignore_index": -100, "chunk": chunk}, wrt=(0, 1), aligned=False,
                loose=2e-3,
            ))  # fmt: skip
    return [*made, *extreme_losses()]


def extreme_losses() -> list[Case]:
    """A score far above all others, at the end of a vector or of a row, or all far below 0: a maximum that forgets one
    element, or knows one too many, has nothing left to add up. Rows that are held whole, and longer ones."""

    def operands(dtype: torch.dtype, classes: int, place: int, scale: float) -> Operands:
        w = torch.full((classes, 16), scale / 16 if place < 0 else 0.0, dtype=dtype)
        if place >= 0:
            w[place] = scale / 16
        return [torch.ones(3, 16, dtype=dtype), w, None, torch.tensor([0, classes - 1, -100])]

    sizes = [(33, 7, 300), (33, 32, 300), (33, -1, -200), (28672, 28671, 300), (57344, 57343, 300), (57353, 57352, 300)]
    return [
        Case(
            f"LinearCrossEntropy {classes} with {scale} at {place}", "LinearCrossEntropy",
            lambda d, c=classes, p=place, s=scale: operands(d, c, p, s),
            lambda x, w, _, labels: F.cross_entropy(x @ w.mT, labels), ("chunk_loss",), "ai.ortmodule",
            {"reduction": "mean", "ignore_index": -100, "chunk": 0}, wrt=(0, 1), aligned=False, loose=2e-3,
        )
        for classes, place, scale in sizes
    ]  # fmt: skip


def attentions() -> list[Case]:
    """Lengths that the stand-in gives to flash attention (odd ones) and to cuDNN's; fewer queries than keys, too."""

    def operands(dtype: torch.dtype, queries: int, keys: int) -> Operands:
        return [torch.randn(2, 3, n, 16, dtype=torch.float64).to(dtype) for n in (queries, keys, keys)]

    return [
        Case(
            f"Attention {queries}x{keys} causal={causal}", "Attention",
            lambda dtype, q=queries, k=keys: operands(dtype, q, k),
            lambda q, k, v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=bool(c)),
            (), attributes={"is_causal": causal}, wrt=(0, 1, 2), aligned=False,
        )
        for queries, keys in ((9, 9), (8, 8), (5, 7), (6, 9))
        for causal in (0, 1)
    ]  # fmt: skip


def wide_products() -> list[Case]:
    """A weight's gradient as floats of narrow factors: no result is rounded to 16 bits on the way."""

    def operands(dtype: torch.dtype) -> Operands:
        shapes = ((2, 9, 5), (2, 9, 7), (5, 7))
        return [torch.randn(*shape, dtype=torch.float64).to(dtype) for shape in shapes]

    def reference(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dy @ w, dy.flatten(0, 1).mT @ x.flatten(0, 1)

    return [
        Case("LinearGrad wide", "LinearGrad", operands, reference, (), "ai.ortmodule", {"wide": 1}, wrt=(), outputs=2,
             aligned=False)
    ]  # fmt: skip


def cases() -> list[Case]:
    return [*losses(), *attentions(), *wide_products()]
