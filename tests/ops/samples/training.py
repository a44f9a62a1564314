"""Rows of com.microsoft's fused operators and of the optimizers in ai.onnx.preview.training."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand, scalar

MICROSOFT = "com.microsoft"
PREVIEW = "ai.onnx.preview.training"
Tensor = torch.Tensor


def biased(dtype: torch.dtype) -> list[Case]:
    return [
        Case((rand(2, 3, 4, dtype=dtype), rand(4, dtype=dtype))),
        Case((rand(0, 4, dtype=dtype), rand(4, dtype=dtype))),
    ]


def fused_matmul(
    a: Tensor,
    b: Tensor,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    if transBatchA:
        a = a.movedim(0, -2)
    if transBatchB:
        b = b.movedim(0, -2)
    return alpha * ((a.mT if transA else a) @ (b.mT if transB else b))


def transpose_matmul_cases(dtype: torch.dtype) -> list[Case]:
    a, b = rand(2, 3, 4, dtype=dtype), rand(2, 4, 5, dtype=dtype)
    turned = a.mT.contiguous(), b.mT.contiguous()
    return [
        Case((a, b)),
        Case((turned[0], b), {"transA": 1, "alpha": 0.5}),
        Case((a, turned[1]), {"transB": 1}),
        Case((turned[0], turned[1]), {"transA": 1, "transB": 1, "alpha": 2.0}),
        Case((a, rand(4, 2, dtype=dtype))),
    ]


def fused_matmul_cases(dtype: torch.dtype) -> list[Case]:
    batched = rand(3, 2, 4, dtype=dtype), rand(2, 4, 5, dtype=dtype)
    return [*transpose_matmul_cases(dtype), Case(batched, {"transBatchA": 1})]


def scaled_sum(*xs: Tensor, scale_0: float, scale_1: float, scale_2: float = 1.0) -> Tensor:
    return sum(x * s for x, s in zip(xs, (scale_0, scale_1, scale_2)))  # type: ignore[return-value]


def scaled_sum_cases(dtype: torch.dtype) -> list[Case]:
    xs = [rand(2, 3, dtype=dtype) for _ in range(3)]
    two = {"scale_0": 0.5, "scale_1": 2.0}
    return [Case(tuple(xs[:2]), two), Case(tuple(xs), {**two, "scale_2": -1.5})]


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def skip_layer_norm(x, skip, gamma, beta=None, bias=None, epsilon=1e-12):  # type: ignore[no-untyped-def]
    total = x + skip if bias is None else x + skip + bias
    var, mean = torch.var_mean(wide(total), -1, correction=0, keepdim=True)
    return F.layer_norm(total, total.shape[-1:], gamma, beta, epsilon), mean, (var + epsilon).rsqrt(), total


def skip_rms_norm(x, skip, gamma, bias=None, epsilon=1e-12):  # type: ignore[no-untyped-def]
    return rms_norm(x + skip if bias is None else x + skip + bias, gamma, epsilon=epsilon)[0]


def rms_norm(x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5) -> tuple[Tensor, Tensor]:
    axes = list(range(axis % x.dim(), x.dim()))
    inverse = (wide(x).square().mean(axes, keepdim=True) + epsilon).rsqrt()
    return (wide(x) * inverse).to(x.dtype) * scale, inverse


def skip_cases(outputs: int, beta: bool):  # type: ignore[no-untyped-def]
    def cases(dtype: torch.dtype) -> list[Case]:
        x = rand(2, 3, 4, dtype=dtype), rand(2, 3, 4, dtype=dtype)
        gamma, other, bias = (rand(4, dtype=dtype) for _ in range(3))
        full = (*x, gamma, other, bias) if beta else (*x, gamma, bias)
        return [Case((*x, gamma), outputs=outputs), Case(full, {"epsilon": 1e-5}, outputs=outputs)]

    return cases


def rms_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x, rand(4, dtype=dtype)), outputs=2),
        Case((x, rand(3, 4, dtype=dtype)), {"axis": 1, "epsilon": 1e-3}, outputs=2),
    ]


def embed(ids, segments, words, places, kinds, gamma, beta, mask=None, positions=None, epsilon=1e-12):  # type: ignore[no-untyped-def]
    total = F.embedding(ids, words) + (places[: ids.shape[1]] if positions is None else F.embedding(positions, places))
    if segments is not None:
        total = total + F.embedding(segments, kinds)
    counts = ids.new_zeros(ids.shape[0]) if mask is None else mask.sum(1)
    return F.layer_norm(total, total.shape[-1:], gamma, beta, epsilon), counts.to(torch.int32), total


def embed_cases(dtype: torch.dtype) -> list[Case]:
    ids = torch.tensor([[0, 4, 2], [1, 1, 3]], dtype=torch.int32)
    segments = torch.tensor([[0, 0, 1], [1, 0, 1]], dtype=torch.int32)
    words, places, kinds = (rand(n, 4, dtype=dtype) for n in (5, 6, 2))
    gamma, beta = rand(4, dtype=dtype), rand(4, dtype=dtype)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.int32)
    return [
        Case((ids, segments, words, places, kinds, gamma, beta, mask), outputs=3),
        Case((ids, None, words, places, None, gamma, beta, None, ids), {"epsilon": 1e-5}, stock=False),
    ]


def bias_softmax(x: Tensor, bias: Tensor, is_inner_broadcast: int, axis: int = 1) -> Tensor:
    total = x + bias
    return torch.softmax(total.flatten(axis), axis).view(total.shape)


def bias_softmax_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x, rand(2, 1, 4, dtype=dtype)), {"axis": 2, "is_inner_broadcast": 1}),
        Case((x, rand(3, 4, dtype=dtype)), {"axis": 1, "is_inner_broadcast": 0}),
    ]


def groups(xs: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    n = len(xs) // count
    return [xs[i * n : (i + 1) * n] for i in range(count)]


def adagrad(rate, t, *xs, norm_coefficient=0.0, decay_factor=0.0, epsilon=1e-6):  # type: ignore[no-untyped-def]
    values, states = [], []
    for x, g, h in zip(*groups(xs, 3)):
        g = norm_coefficient * x + g
        states.append(h + g * g)
        values.append(x - float(rate) / (1 + int(t) * decay_factor) * g / (states[-1].sqrt() + epsilon))
    return (*values, *states)


def adam(rate, t, *xs, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0, norm_coefficient_post=0.0):  # type: ignore[no-untyped-def]
    r = float(rate) * ((1 - beta ** int(t)) ** 0.5 / (1 - alpha ** int(t)) if int(t) > 0 else 1)
    values, first, second = [], [], []
    for x, g, v, h in zip(*groups(xs, 4)):
        g = norm_coefficient * x + g
        first.append(alpha * v + (1 - alpha) * g)
        second.append(beta * h + (1 - beta) * g * g)
        values.append((1 - norm_coefficient_post) * (x - r * first[-1] / (second[-1].sqrt() + epsilon)))
    return (*values, *first, *second)


def momentum(rate, t, *xs, alpha, beta, mode, norm_coefficient=0.0):  # type: ignore[no-untyped-def]
    values, states = [], []
    for x, g, v in zip(*groups(xs, 3)):
        g = norm_coefficient * x + g
        states.append(alpha * v + (beta if int(t) > 0 else 1) * g)
        values.append(x - float(rate) * (g + alpha * states[-1] if mode == "nesterov" else states[-1]))
    return (*values, *states)


def optimizer_cases(kinds: int, *attributes: dict[str, object]):  # type: ignore[no-untyped-def]
    def cases(dtype: torch.dtype) -> list[Case]:
        out = []
        for t, given in enumerate(attributes):
            shapes = [(2, 3), (4,)][: 1 + t % 2]
            tensors = [rand(*s, dtype=dtype, low=0.1) for _ in range(kinds) for s in shapes]
            rate = torch.tensor(0.1, dtype=torch.float32)
            out.append(Case((rate, scalar(t), *tensors), dict(given), outputs=(kinds - 1) * len(shapes)))
        return out

    return cases


SGD = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.01}
ROWS = [
    Row("Gelu", F.gelu, lambda dtype: [Case((rand(2, 3, dtype=dtype),))], MICROSOFT),
    Row("FastGelu", lambda x, b: F.gelu(x + b, approximate="tanh"), biased, MICROSOFT),
    Row(
        "FastGelu",
        lambda x: F.gelu(x, approximate="tanh"),
        lambda dtype: [Case((rand(2, 3, dtype=dtype),))],
        MICROSOFT,
    ),
    Row("BiasGelu", lambda x, b: F.gelu(x + b), biased, MICROSOFT),
    Row("FusedMatMul", fused_matmul, fused_matmul_cases, MICROSOFT, tolerance=5e-2),
    Row("TransposeMatMul", fused_matmul, transpose_matmul_cases, MICROSOFT, tolerance=5e-2),
    Row("ScaledSum", scaled_sum, scaled_sum_cases, MICROSOFT, tolerance=5e-2),
    Row(
        "SkipLayerNormalization",
        skip_layer_norm,
        skip_cases(1, True),
        MICROSOFT,
        tolerance=5e-2,
        no_forms=("size 4 as 0",),
    ),
    Row(
        "SkipLayerNormalization",
        skip_layer_norm,
        skip_cases(4, True),
        MICROSOFT,
        differentiable=False,
        tolerance=5e-2,
        no_forms=("size 4 as 0",),
    ),
    Row("SkipSimplifiedLayerNormalization", skip_rms_norm, skip_cases(1, False), MICROSOFT, tolerance=5e-2),
    Row("SimplifiedLayerNormalization", rms_norm, rms_cases, tolerance=5e-2),
    Row("SimplifiedLayerNormalization", rms_norm, rms_cases, MICROSOFT, tolerance=5e-2),
    Row("EmbedLayerNormalization", embed, embed_cases, MICROSOFT, tolerance=5e-2, refuses=True),
    Row("BiasSoftmax", bias_softmax, bias_softmax_cases, MICROSOFT, tolerance=5e-2),
    Row(
        "Adagrad",
        adagrad,
        optimizer_cases(3, {}, {"decay_factor": 0.1, "norm_coefficient": 0.01}),
        PREVIEW,
        differentiable=False,
        tolerance=5e-2,
    ),
    Row(
        "Adam",
        adam,
        optimizer_cases(4, {}, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.1, "alpha": 0.8}),
        PREVIEW,
        differentiable=False,
        tolerance=5e-2,
    ),
    Row(
        "Momentum",
        momentum,
        optimizer_cases(3, {**SGD, "mode": "standard"}, {**SGD, "mode": "nesterov"}),
        PREVIEW,
        differentiable=False,
        tolerance=5e-2,
    ),
]
