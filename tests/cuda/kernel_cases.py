"""The cases: what each CUDA kernel computes, at sizes where its threads, vectors and tiles end.

A new kernel is a few lines here. Not here: how a case is run (cases.py).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .cases import WIDTHS, Case, Operands

OWN, MICROSOFT = "ai.ortmodule", "com.microsoft"


def normal(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype)


def whole(width: int) -> bool:
    """Whether rows of it begin at sectors in every type."""
    return width % 16 == 0


# -- rows --------------------------------------------------------------------------------------------------------------


def norm_operands(rows: int, width: int, bias: bool, dtype: torch.dtype) -> Operands:
    given: Operands = [normal(rows, width, dtype=dtype, scale=2) + 1, normal(width, dtype=dtype)]
    return [*given, normal(width, dtype=dtype)] if bias else given


def norms() -> list[Case]:
    cases = []
    for width in WIDTHS:
        rows = 5 if width < 300 else 3
        bias = width % 2 == 0
        wrt = (0, 1, 2) if bias else (0, 1)
        cases.append(Case(
            f"LayerNormalization {rows}x{width}", "LayerNormalization",
            lambda d, r=rows, w=width, b=bias: norm_operands(r, w, b, d),
            lambda x, s, b=None: F.layer_norm(x, s.shape, s, b, 1e-5),
            ("layer_norm", "layer_norm_gradient", "norm_parameters", "norm_parameters_total"),
            attributes={"axis": -1, "epsilon": 1e-5}, wrt=wrt, aligned=whole(width),
        ))  # fmt: skip
        cases.append(Case(
            f"RMSNormalization {rows}x{width}", "RMSNormalization",
            lambda d, r=rows, w=width: norm_operands(r, w, False, d),
            lambda x, s: F.rms_norm(x, s.shape, s, 1e-5),
            ("rms_norm", "rms_norm_gradient", "norm_parameters", "norm_parameters_total"),
            attributes={"axis": -1, "epsilon": 1e-5}, wrt=(0, 1), aligned=whole(width),
        ))  # fmt: skip
    for rows in (63, 64, 65, 130, 4200):  # chunks of the sums over rows
        cases.append(Case(
            f"LayerNormalization {rows}x16", "LayerNormalization",
            lambda d, r=rows: norm_operands(r, 16, True, d),
            lambda x, s, b: F.layer_norm(x, s.shape, s, b, 1e-5),
            ("layer_norm", "norm_parameters"), attributes={"epsilon": 1e-5}, wrt=(0, 1, 2), aligned=False,
        ))  # fmt: skip
    return cases


def softmaxes() -> list[Case]:
    cases = []
    for width in WIDTHS:
        for op, function, kernel in (
            ("Softmax", F.softmax, "softmax"),
            ("LogSoftmax", F.log_softmax, "log_softmax"),
        ):
            cases.append(Case(
                f"{op} 5x{width}", op,
                lambda d, w=width: [normal(5, w, dtype=d, scale=3)],
                lambda x, f=function: f(x, -1),
                (kernel, f"{kernel}_gradient"), attributes={"axis": -1}, aligned=whole(width),
            ))  # fmt: skip
    return cases


def loss_operands(rows: int, classes: int, weighted: bool, dtype: torch.dtype) -> Operands:
    labels = torch.randint(classes, (rows,))
    labels[0], labels[-1] = 0, classes - 1
    if rows > 2:
        labels[1] = -100
    given: Operands = [normal(rows, classes, dtype=dtype, scale=3), labels]
    return [*given, (torch.rand(classes, dtype=torch.float64) + 0.5).to(dtype)] if weighted else given


def losses() -> list[Case]:
    sizes = [(5, width) for width in WIDTHS if width > 1] + [(1, 16), (33, 32), (1025, 8), (2500, 4)]
    cases = []
    for i, (rows, classes) in enumerate(sizes):
        reduction, weighted = ("mean", "sum", "none")[i % 3], i % 2 == 1
        kernels = ["cross_entropy", "cross_entropy_gradient"]
        kernels += ["cross_entropy_sum"] * (reduction != "none") + ["label_weight_sum"] * (reduction == "mean")
        cases.append(Case(
            f"SoftmaxCrossEntropyLoss {rows}x{classes} {reduction}", "SoftmaxCrossEntropyLoss",
            lambda d, r=rows, c=classes, w=weighted: loss_operands(r, c, w, d),
            lambda x, t, w=None, r=reduction: F.cross_entropy(x, t, w, reduction=r, ignore_index=-100),
            tuple(kernels), attributes={"reduction": reduction, "ignore_index": -100},
            aligned=whole(classes) and rows > 4,
        ))  # fmt: skip
    return cases


# -- elements ----------------------------------------------------------------------------------------------------------

COUNTS = (1, 3, 4, 5, 8, 31, 1023, 1024, 1025, 2048, 2051)


def activations() -> list[Case]:
    functions = [
        ("Gelu", "", {}, F.gelu),
        ("Gelu", "", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
        ("Silu", OWN, {}, F.silu),
        ("QuickGelu", MICROSOFT, {"alpha": 1.702}, lambda x: x * torch.sigmoid(1.702 * x)),
        ("Tanh", "", {}, torch.tanh),
        ("Sigmoid", "", {}, torch.sigmoid),
    ]
    return [
        Case(
            f"{op} {attributes.get('approximate', '')} {count}", op,
            lambda d, n=count: [normal(n, dtype=d, scale=2)], function,
            ("activation", "activation_gradient"), domain, attributes, aligned=count % 16 == 0,
        )
        for op, domain, attributes, function in functions
        for count in (COUNTS if op == "Gelu" else COUNTS[::4])
    ]  # fmt: skip


def dropouts() -> list[Case]:
    """From 64 elements on a block of random words is whole; a warp has 128 or 256 elements."""
    state, ratio = torch.tensor([-(1 << 40) - 3, 1 << 33]), torch.tensor(0.3)
    return [
        Case(
            f"PhiloxDropout {count}", "PhiloxDropout",
            lambda d, n=count: [normal(n, dtype=d), ratio.to(torch.float32), state],
            None, ("philox_dropout",), OWN, {"stream": 5}, constants=(1, 2), aligned=count % 16 == 0,
        )
        for count in (1, 4, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1024, 2047, 2048, 2049, 5000)
    ]  # fmt: skip


def gathers() -> list[Case]:
    cases = []
    for count, rows, width in ((1, 1, 1), (5, 3, 4), (63, 7, 8), (64, 2, 16), (65, 2, 16), (200, 3, 33), (300, 1, 64),
                               (129, 50, 260)):  # fmt: skip

        def operands(d: torch.dtype, n: int = count, r: int = rows, w: int = width) -> Operands:
            ids = torch.randint(r, (n,))
            ids[-1] = r - 1
            return [normal(r, w, dtype=d), ids]

        long = ("sum_long_rows",) if count > 64 else ()
        cases.append(Case(
            f"Embedding {count} of {rows}x{width}", "Embedding", operands, lambda w, i: F.embedding(i, w),
            ("gather_rows", "sum_rows", *long), OWN, aligned=False,
        ))  # fmt: skip
        cases.append(Case(
            f"Gather {count} of {rows}x{width}", "Gather",
            lambda d, o=operands: _negative(o(d)),
            lambda w, i: w[i], ("gather_rows", "sum_rows"), attributes={"axis": 0}, aligned=False,
        ))  # fmt: skip
    for count in (64, 70):
        cases.append(Case(
            f"Embedding {count} with padding", "Embedding",
            lambda d, n=count: [normal(3, 16, dtype=d), torch.arange(n) % 3],
            lambda w, i: F.embedding(i, w, padding_idx=1), ("gather_rows", "sum_rows"), OWN, {"padding_idx": 1},
            aligned=False,
        ))  # fmt: skip
    cases.append(Case(
        "Embedding 40 of 64x128", "Embedding",
        lambda d: [normal(64, 128, dtype=d), torch.randperm(64)[:40]], lambda w, i: F.embedding(i, w),
        ("gather_rows", "sum_rows"), OWN,
    ))  # fmt: skip
    return cases


def _negative(operands: Operands) -> Operands:
    table, ids = operands
    assert table is not None and ids is not None
    return [table, torch.where(torch.arange(len(ids)) % 2 == 1, ids - table.shape[0], ids)]


CASES: list[Case] = [*norms(), *softmaxes(), *losses(), *activations(), *dropouts(), *gathers()]
