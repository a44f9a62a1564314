"""The cases: what each CUDA kernel computes, at sizes where its threads, vectors and tiles end.

A new kernel is a few lines here. Not here: how a case is run (cases.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from .batch_norm_cases import batch_norms
from .cases import WIDTHS, Case, Operands, normal

OWN, MICROSOFT = "ai.ortmodule", "com.microsoft"


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


def masked(width: int, dtype: torch.dtype) -> Operands:
    """Scores of attention whose first part is out of sight."""
    x = normal(3, width, dtype=dtype, scale=3)
    x[:, : width // 2] = -torch.inf
    return [x]


def masks() -> list[Case]:
    return [
        Case(
            f"Softmax 3x{width} masked", "Softmax", lambda d, w=width: masked(w, d), lambda x: F.softmax(x, -1),
            ("softmax", "softmax_gradient"), attributes={"axis": -1}, aligned=False,
        )
        for width in (32, 1024, 8200)
    ]  # fmt: skip


def sums() -> list[Case]:
    """Over the last axes, in parts of 16384 where rows are long, and over the first, in chunks of 64 rows."""
    cases = []
    for op, function in (("ReduceSum", torch.sum), ("ReduceMean", torch.mean)):
        for rows, width in ((5, 1), (3, 7), (9, 32), (5, 129), (4, 512), (3, 513), (2, 1025), (3, 16384), (2, 16388),
                            (1, 40000)):  # fmt: skip
            cases.append(Case(
                f"{op} {rows}x{width}", op,
                lambda d, r=rows, w=width: [normal(r, 1, w, dtype=d), torch.tensor([1, -1])],
                lambda x, _, f=function: f(x, (1, 2)), ("sum_columns",), attributes={"keepdims": 0}, constants=(1,),
                aligned=whole(width) and width > 100,
            ))  # fmt: skip
    for rows, width in ((2, 8), (3, 17), (8, 33), (63, 16), (65, 130), (200, 256), (4200, 16)):
        cases.append(Case(
            f"ReduceSum {rows}x{width} of rows", "ReduceSum",
            lambda d, r=rows, w=width: [normal(r, w, dtype=d), torch.tensor([0])],
            lambda x, _: x.sum(0, True), ("sum_rows_parts", "sum_rows_total"), constants=(1,), aligned=width == 256,
        ))  # fmt: skip
    cases.append(Case(
        "ReduceSumTo 3x5x8", "ReduceSumTo", lambda d: [normal(3, 5, 8, dtype=d), torch.tensor([1, 8])],
        lambda x, _: x.sum((0, 1))[None], ("sum_rows_parts",), OWN, constants=(1,), aligned=False,
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
    sizes = [(8, width) for width in WIDTHS if width > 1] + [(1, 16), (33, 32), (1025, 8), (2500, 4)]
    cases = []
    for rows in (1, 5):  # nothing to learn from: the loss is NaN, the gradient 0
        cases.append(Case(
            f"SoftmaxCrossEntropyLoss {rows}x8 ignored", "SoftmaxCrossEntropyLoss",
            lambda d, r=rows: [normal(r, 8, dtype=d), torch.full((r,), -100)], F.cross_entropy,
            ("cross_entropy", "cross_entropy_gradient"), attributes={"ignore_index": -100}, aligned=False,
        ))  # fmt: skip
    for i, (rows, classes) in enumerate(sizes):
        reduction, weighted = ("mean", "sum", "none")[i % 3], i % 2 == 1
        kernels = ["cross_entropy", "cross_entropy_gradient"]
        kernels += ["cross_entropy_sum"] * (reduction != "none") + ["label_weight_sum"] * (reduction == "mean")
        cases.append(Case(
            f"SoftmaxCrossEntropyLoss {rows}x{classes} {reduction}", "SoftmaxCrossEntropyLoss",
            lambda d, r=rows, c=classes, w=weighted: loss_operands(r, c, w, d),
            lambda x, t, w=None, r=reduction: F.cross_entropy(x, t, w, reduction=r, ignore_index=-100),
            tuple(kernels), attributes={"reduction": reduction, "ignore_index": -100},
            aligned=whole(classes) and rows % 8 == 0 and not weighted,  # weights are read here and there
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


DRAWN, FIRST_WORD = torch.tensor([-(1 << 40) - 3, 1 << 33]), 2871704593


def biased() -> list[Case]:
    """Gelu of a sum with a bias; its gradient joins the bias's sum in a generated kernel."""
    return [
        Case(
            f"{op} {rows}x{width}", op,
            lambda d, r=rows, w=width: [normal(r, w, dtype=d, scale=2), normal(w, dtype=d)],
            lambda x, b, a=approximate: F.gelu(x + b, approximate=a), ("biased_activation",),
            MICROSOFT, wrt=(0, 1), aligned=whole(width),
        )
        for op, approximate in (("BiasGelu", "none"), ("FastGelu", "tanh"))
        for rows, width in ((1, 1), (3, 7), (5, 32), (9, 128), (2, 1025), (3, 2048))
    ]  # fmt: skip


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    heads = x if x.dim() == 4 else x.unflatten(2, (-1, 2 * cos.shape[-1])).transpose(1, 2)
    first, second = heads.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    y = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return y if x.dim() == 4 else y.transpose(1, 2).flatten(2)


def rotations() -> list[Case]:
    """Heads of 2 * half elements, in front of tokens and behind them; caches of every batch or one for all."""
    cases = []
    for heads, tokens, half in ((1, 1, 1), (2, 5, 3), (3, 7, 4), (2, 9, 8), (4, 16, 32), (2, 33, 64)):
        for packed in (False, True):
            shape = (2, tokens, heads * 2 * half) if packed else (2, heads, tokens, 2 * half)
            caches = 2 if half % 3 == 0 or packed else 1
            cases.append(Case(
                f"RotaryEmbedding {heads}x{tokens}x{half} {'packed' if packed else ''}", "RotaryEmbedding",
                lambda d, s=shape, c=(caches, tokens, half): [normal(*of, dtype=d) for of in (s, c, c)],
                turned, ("rotary",), attributes={"num_heads": heads} if packed else {}, aligned=half % 16 == 0,
            ))  # fmt: skip
    return cases


def dropouts() -> list[Case]:
    """From 64 elements on a block of random words is whole; a warp has 128 or 256 elements."""
    counts = (1, 4, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1024, 2047, 2048, 2049, 5000)
    # The random word of element 0 is as large as the first of these ratios says, and just below the second.
    ratios = [(count, 0.3) for count in counts] + [(4, FIRST_WORD / 2**32), (4, (FIRST_WORD + 1) / 2**32)]
    return [
        Case(
            f"PhiloxDropout {count} of {ratio:.10f}", "PhiloxDropout",
            lambda d, n=count, r=ratio: [normal(n, dtype=d), torch.tensor(r, dtype=torch.float64), DRAWN],
            None, ("philox_dropout",), OWN, {"stream": 5}, constants=(1, 2), aligned=count % 16 == 0,
        )
        for count, ratio in ratios
    ]  # fmt: skip


def gathers() -> list[Case]:
    cases = []
    for count, rows, width in ((1, 1, 1), (5, 3, 4), (63, 7, 8), (64, 2, 16), (65, 2, 16), (128, 1, 16), (129, 1, 16),
                               (200, 3, 33), (300, 1, 64), (129, 50, 260)):  # fmt: skip

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


# -- many tensors at once ----------------------------------------------------------------------------------------------


def casts() -> list[Case]:
    """A chunk of a block is 4 times 256 vectors of 4 or 8; lists are of 128 tensors."""
    shapes: list[list[tuple[int, ...]]] = [
        [(1,)], [(3,), (4, 2), (5,)], [(1024, 4)], [(1025, 4), (7,)], [(1024, 8), (1,), (2048, 8)], [(4099, 3)],
        [(1 + i % 5,) for i in range(128)], [(2 + i % 3,) for i in range(131)],
    ]  # fmt: skip
    return [
        Case(
            f"CastAll {len(of)} of {of[0]} to {to}", "CastAll",
            lambda d, of=of: [normal(*shape, dtype=d) for shape in of],
            lambda *xs, to=to: tuple(x.to(to) for x in xs), ("cast_all",), OWN, {"to": to}, wrt=(), outputs=len(of),
            aligned=of[0] == (1024, 4),
        )
        for of in shapes
        for to in (torch.float32, torch.bfloat16, torch.float16)[: 1 + 2 * (len(of) < 100)]
    ]  # fmt: skip


def counters() -> list[Case]:
    """A thread for an element, lists of 128."""
    return [
        Case(
            f"AddAll {len(of)} of {of[0]}", "AddAll",
            lambda _, of=of: [torch.randint(1 << 40, shape) for shape in of],
            lambda *xs: tuple(x + 3 for x in xs), ("add_all",), OWN, {"value": 3}, wrt=(), outputs=len(of),
            aligned=False,
        )
        for of in ([()], [(3,), (), (2, 2)], [(1024,), (1025,)], [()] * 129)
    ]  # fmt: skip


def joined_sums() -> list[Case]:
    """Parts side by side and the sums over rows, 8 rows a tile and 64 a chunk."""
    cases = []
    for rows, widths in ((1, (1,)), (3, (3, 4)), (8, (8, 16, 8)), (9, (1, 2, 3, 4)), (65, (16, 16, 16)),
                         (70, (64, 64, 64, 64)), (200, (256, 32)), (2, (300, 500))):  # fmt: skip
        for wide in (0, 1):
            cases.append(Case(
                f"ConcatSum {rows}x{widths} {'wide' * wide}", "ConcatSum",
                lambda d, r=rows, of=widths: [normal(r, w, dtype=d) for w in of],
                lambda *xs: (torch.cat(xs, -1), torch.cat(xs, -1).sum(0)),
                ("concat_sum", "concat_sum_total"), OWN, {"wide": wide}, wrt=(), outputs=2,
                aligned=all(w % 16 == 0 for w in widths) and rows > 8,
            ))  # fmt: skip
    return cases


def grouped_product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    starts = [0, *ends.tolist()]
    parts = [x[a:b] @ w[g] for g, (a, b) in enumerate(zip(starts, starts[1:], strict=False))]
    return torch.cat([*parts, x[starts[-1] :] @ w[0] * 0])


def grouped_products() -> list[Case]:
    """Tiles of 32 x 32 results and 32 terms; groups without rows, rows of no group."""
    sizes = [
        (1, 1, 1, (1,)), (6, 3, 2, (2, 2, 5, 6)), (6, 3, 5, (0, 0, 6, 6)), (40, 33, 31, (3, 35)),
        (64, 32, 64, (32, 64)), (70, 65, 33, (1, 34, 66)),
    ]  # fmt: skip
    return [
        Case(
            f"GroupedMatMul {rows}x{inner}x{outer} to {ends}", "GroupedMatMul",
            lambda d, r=rows, i=inner, o=outer, e=ends: [
                normal(r, i, dtype=d), normal(len(e), i, o, dtype=d), torch.tensor(e, dtype=torch.int32)],
            grouped_product, ("grouped_matmul",), OWN, wrt=(0, 1), aligned=rows == 64, loose=3e-5,
        )
        for rows, inner, outer, ends in sizes
    ]  # fmt: skip


def refusals() -> list[Case]:
    """Positions that no row has: a trap, as in torch's own kernels."""

    def labels(label: int) -> Callable[[torch.dtype], Operands]:
        return lambda d: [normal(3, 8, dtype=d), torch.tensor([1, label, 2])]

    def rows(i: int) -> Callable[[torch.dtype], Operands]:
        return lambda d: [normal(4, 8, dtype=d), torch.tensor([1, i, 2])]

    def sums(i: int) -> Callable[[torch.dtype], Operands]:
        return lambda d: [normal(3, 8, dtype=d), torch.tensor([1, i, 2]), torch.tensor([4, 8])]

    def runs(*ends: int) -> Callable[[torch.dtype], Operands]:
        return lambda d: [normal(3, 4, dtype=d), normal(2, 4, 5, dtype=d), torch.tensor(ends)]

    def scores(label: int) -> Callable[[torch.dtype], Operands]:
        return lambda d: [normal(3, 4, dtype=d), normal(8, 4, dtype=d), None, torch.tensor([1, label, 2])]

    refused: list[tuple[str, str, Callable[[torch.dtype], Operands], tuple[int, ...]]] = []
    refused += [("SoftmaxCrossEntropyLoss", "", labels(label), ()) for label in (-1, 8)]
    refused += [("LinearCrossEntropy", OWN, scores(label), ()) for label in (-1, 8)]
    refused += [("Embedding", OWN, rows(i), ()) for i in (-5, 4)]
    refused += [("EmbeddingGrad", OWN, sums(i), (2,)) for i in (-5, 4)]
    refused += [("GroupedMatMul", OWN, runs(*ends), ()) for ends in ((2, 1), (1, 4), (-1, 3))]
    return [
        Case(f"{op} refuses {k % 2}", op, operands, None, (), domain, wrt=(), constants=constants, error="a trap")
        for k, (op, domain, operands, constants) in enumerate(refused)
    ]


CASES: list[Case] = [
    *masks(),
    *refusals(),
    *sums(),
    *norms(),
    *batch_norms(),
    *softmaxes(),
    *losses(),
    *activations(),
    *biased(),
    *rotations(),
    *dropouts(),
    *gathers(),
    *casts(),
    *counters(),
    *joined_sums(),
    *grouped_products(),
]
