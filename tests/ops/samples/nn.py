"""Rows of products, normalisation, attention, losses, dropout and the generic ATen operator.

The standard's Dropout draws as eager does, so that PyTorch is its reference; PhiloxDropout's own draws are tested in
test_random.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand

OWN = "ai.ortmodule"


def double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def flag(value: bool) -> torch.Tensor:
    return torch.tensor(value)


# -- products ----------------------------------------------------------------------------------------------------------


def linear_cases(dtype: torch.dtype) -> Sequence[Case]:
    w, b = rand(4, 3, dtype=dtype), rand(4, dtype=dtype)
    shapes = [(3,), (2, 3), (2, 5, 3), (2, 1, 5, 3), (0, 3)]
    return [Case((rand(*s, dtype=dtype), w, b)) for s in shapes] + [Case((rand(2, 5, 3, dtype=dtype), w))]


def grouped_matmul(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    starts = [0, *ends.tolist()]
    parts = [x[a:b] @ w[g] for g, (a, b) in enumerate(zip(starts, starts[1:], strict=False))]
    return torch.cat([*parts, x[starts[-1] :] @ w[0] * 0])


def grouped_matmul_cases(dtype: torch.dtype) -> list[Case]:
    x, w = rand(6, 3, dtype=dtype), rand(4, 3, 2, dtype=dtype)
    every = [(2, 2, 5, 6), (0, 0, 6, 6), (1, 3, 3, 4), (0, 0, 0, 0)]  # empty groups; rows that belong to none
    cases = [Case((x, w, torch.tensor(ends, dtype=torch.int32))) for ends in every]
    return [*cases, Case((x, w.transpose(1, 2).contiguous().transpose(1, 2), torch.tensor(every[0])))]


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> torch.Tensor:
    y = alpha * ((a.t() if transA else a) @ (b.t() if transB else b))
    return y if c is None else y + beta * c


def gemm_cases(dtype: torch.dtype) -> Sequence[Case]:
    out = []
    for ta in (0, 1):
        for tb in (0, 1):
            a = rand(*((3, 2) if ta else (2, 3)), dtype=dtype)
            b = rand(*((4, 3) if tb else (3, 4)), dtype=dtype)
            out.append(Case((a, b, rand(4, dtype=dtype)), {"transA": ta, "transB": tb}))
            out.append(Case((a, b), {"transA": ta, "transB": tb, "alpha": 0.5}))
            out.append(Case((a, b, rand(2, 1, dtype=dtype)), {"transA": ta, "transB": tb, "alpha": 2.0, "beta": 0.25}))
    return out


def matmul_cases(dtype: torch.dtype) -> Sequence[Case]:
    pairs = [
        ((2, 3), (3, 4)),
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (1, 5, 3, 4)),
        ((0, 2, 3), (3, 4)),
    ]
    return [Case((rand(*a, dtype=dtype), rand(*b, dtype=dtype))) for a, b in pairs]


def einsum(*operands: torch.Tensor, equation: str) -> torch.Tensor:
    return torch.einsum(equation, *operands)


def einsum_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(2, 3, dtype=dtype), rand(3, 4, dtype=dtype)), {"equation": "ij,jk->ik"}),
        Case((rand(2, 3, dtype=dtype), rand(3, 4, dtype=dtype)), {"equation": "ij, jk"}),
        Case((rand(2, 5, 3, dtype=dtype), rand(2, 4, 3, dtype=dtype)), {"equation": "bid,bjd->bji"}),
        Case((rand(3, dtype=dtype), rand(2, 3, dtype=dtype), rand(2, dtype=dtype)), {"equation": "i,ji,j->"}),
    ]


# -- normalisation -----------------------------------------------------------------------------------------------------


def layer_norm(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, axis: int = -1, epsilon: float = 1e-5
) -> torch.Tensor:
    return F.layer_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), bias, epsilon)


def layer_norm_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 8, dtype=dtype)
    return [
        Case((x, rand(8, dtype=dtype), rand(8, dtype=dtype))),
        Case((x, rand(8, dtype=dtype)), {"epsilon": 1e-3}),
        Case((rand(150, 133, dtype=dtype), rand(133, dtype=dtype), rand(133, dtype=dtype)), {"epsilon": 0.1}),
        Case((x, rand(3, 8, dtype=dtype), rand(3, 8, dtype=dtype)), {"axis": 1}),
        Case((x, rand(1, dtype=dtype))),
    ]


def rms_norm(x: torch.Tensor, scale: torch.Tensor, axis: int = -1, epsilon: float = 1e-5) -> torch.Tensor:
    return F.rms_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), epsilon)


def rms_norm_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 40, dtype=dtype)
    return [
        Case((x, rand(40, dtype=dtype))),
        Case((x, rand(40, dtype=dtype)), {"epsilon": 1e-2}),
        Case((x, rand(3, 40, dtype=dtype)), {"axis": 1}),
        Case((rand(37, 33, dtype=dtype), rand(33, dtype=dtype))),
        Case((x, rand(1, dtype=dtype))),
    ]


def group_norm_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(2, 6, *d, dtype=dtype), rand(6, dtype=dtype), rand(6, dtype=dtype)), {"num_groups": g})
        for d in ((4,), (3, 5))
        for g in (1, 3, 6)
    ]


def instance_norm_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(2, 3, *d, dtype=dtype), rand(3, dtype=dtype), rand(3, dtype=dtype)), {"epsilon": 1e-3})
        for d in ((8,), (4, 5))
    ]


# -- softmax and losses ------------------------------------------------------------------------------------------------


def softmax_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 5, dtype=dtype)
    return [Case((x,)), Case((x,), {"axis": 1}), Case((x,), {"axis": -3}), Case((rand(4, 70, dtype=dtype),))]


def cross_entropy(
    scores: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, ...]:
    loss = F.cross_entropy(scores, labels.long(), weights, ignore_index=ignore_index, reduction=reduction)
    return loss, F.log_softmax(scores, 1)


def nll_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    # PyTorch's own backward refuses strided log-probabilities.
    return F.nll_loss(x.contiguous(), target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def loss_cases(dtype: torch.dtype, *, log_prob: bool = True) -> Sequence[Case]:
    x, labels = rand(6, 70, dtype=dtype), ints(1, 69, 0, 7, 2, 2)
    some = labels.clone()
    some[1::2] = -100
    planes = torch.randint(0, 5, (2, 3, 4))
    planes[0, 1] = 3
    weight = rand(70, dtype=dtype, low=0.5)
    out = [Case((x, labels), {"reduction": r}) for r in ("mean", "sum", "none")]
    out += [Case((x, some, weight), {"reduction": r, "ignore_index": -100}) for r in ("mean", "sum", "none")]
    out += [
        Case((x, labels.int())),
        Case((x, torch.full_like(labels, -100)), {"ignore_index": -100, "reduction": "sum"}),
        Case((rand(2, 5, 3, 4, dtype=dtype), planes, rand(5, dtype=dtype, low=0.5)), {"ignore_index": 3}),
        Case((rand(2, 5, 3, 4, dtype=dtype), planes), {"reduction": "none"}),
    ]
    return [*out, Case((x, labels), outputs=2)] if log_prob else out


def nll_cases(dtype: torch.dtype) -> Sequence[Case]:
    return loss_cases(dtype, log_prob=False)


# -- attention ---------------------------------------------------------------------------------------------------------


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    ratio: torch.Tensor | None = None,
    is_causal: int = 0,
    scale: float | None = None,
) -> torch.Tensor:
    if mask is not None and is_causal:
        mask = mask + torch.full(mask.shape[-2:], -torch.inf, dtype=mask.dtype).triu(1)
    grouped = q.size(1) != k.size(1)
    if 0 in (q.size(1), k.size(1)):  # torch 2.11 divides by the number of heads, which ends the process
        return q.matmul(k.mT).matmul(v)
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=bool(is_causal) and mask is None, scale=scale, enable_gqa=grouped
    )


def attention_cases(dtype: torch.dtype) -> Sequence[Case]:
    q, k, v = (rand(2, 4, n, 8, dtype=dtype) for n in (5, 7, 7))
    shared = rand(2, 2, 7, 8, dtype=dtype), rand(2, 2, 7, 8, dtype=dtype)
    seen = torch.rand(2, 1, 5, 7) < 0.7
    seen[..., 0] = True
    return [
        Case((q, k, v)),
        Case((q, k, v), {"is_causal": 1}),
        Case((q, k, v), {"scale": 0.3}),
        Case((q, k, v, rand(2, 1, 5, 7, dtype=dtype))),
        Case((q, k, v, rand(5, 7, dtype=dtype)), {"is_causal": 1}),
        Case((q, k, v, seen)),
        Case((q, *shared)),
        Case((q, *shared), {"is_causal": 1}),
    ]


def attention_dropout_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((*c.inputs, *[None] * (4 - len(c.inputs)), double(0.0)), c.attributes, (4,))
        for c in attention_cases(dtype)
        if c.inputs[0].size(1) == c.inputs[1].size(1)
    ]


# -- dropout -----------------------------------------------------------------------------------------------------------


def dropout(x: torch.Tensor, ratio: torch.Tensor | None = None, training: torch.Tensor | None = None) -> tuple:
    """Eager's dropout, and its mask by drawing a second time from the same state of the generator."""
    p = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training) or p == 0:
        return x * 1, torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return F.dropout(x, p), torch.zeros_like(x, dtype=torch.bool)
    if not x.is_cpu:
        return torch.native_dropout(x, p, True)
    state = torch.get_rng_state()
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    torch.set_rng_state(state)
    return F.dropout(x, p), mask


def dropout_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)
    return [
        Case((x,)),
        Case((x, double(0.3)), {}, (1,)),
        Case((x, double(0.3), flag(False)), {}, (1, 2), 2),
        Case((x, double(0.0), flag(True)), {}, (1, 2), 2),
        Case((x, double(1.0), flag(True)), {}, (1, 2), 2),
        Case((rand(33, 70, dtype=dtype), double(0.15), flag(True)), {}, (1, 2), 2),
    ]


_STATE = torch.tensor([7, 11])  # of the counter-based kinds


def philox_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(3, 4, dtype=dtype), double(r), _STATE), {"stream": 3}, (1,)) for r in (0.0, 1.0)]


def philox_attention_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((*c.inputs, _STATE), c.attributes, c.constants) for c in attention_dropout_cases(dtype)]


def philox_attention(*operands: torch.Tensor | None, **attributes: Any) -> torch.Tensor:
    return attention(*operands[:5], **{k: v for k, v in attributes.items() if k != "stream"})


# -- ATen --------------------------------------------------------------------------------------------------------------

ATEN = {
    "aten::flip": lambda x: torch.flip(x, [0, -1]),
    "aten::cumprod": lambda x: torch.cumprod(x, 1),
    "aten::unbind": lambda x: torch.unbind(x, 1),
    "aten::logsumexp": lambda x: torch.logsumexp(x, [1], True),
    "aten::cat": lambda *xs: torch.cat(xs, 1),
    "aten::index_put": lambda x, i, v: torch.ops.aten.index_put(x, [i, None], v, True),
    "aten::clamp": lambda x: torch.clamp(x, max=0.5),
    "aten::std_mean": lambda x: torch.std_mean(x, [1], correction=0, keepdim=True),
    "aten::var": lambda x: torch.var(x, [1], correction=1),
}


def aten(*inputs: torch.Tensor, operator: str, **_: object) -> object:
    return ATEN[operator](*inputs)


def aten_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)

    def case(operator: str, overload: str, *arguments: str, inputs: tuple = (x,), outputs: int = 1) -> Case:
        attributes = {"operator": f"aten::{operator}", "overload": overload, "arguments": list(arguments)}
        return Case(inputs, attributes, outputs=outputs)

    return [
        case("flip", "", "t", "I:0,-1"),
        case("cumprod", "", "t", "i:1", "-"),
        case("unbind", "int", "t", "i:1", outputs=4),
        case("logsumexp", "", "t", "I:1", "b:1"),
        case("cat", "", "T3", "i:1", inputs=(x, rand(3, 2, dtype=dtype), rand(3, 1, dtype=dtype))),
        case("index_put", "", "t", "Ttn", "t", "b:1", inputs=(x, ints(0, 2, 0), rand(3, 4, dtype=dtype))),
        case("clamp", "", "t", "n", "c:f:0.5"),
        case("std_mean", "correction", "t", "I:1", "c:i:0", "b:1", outputs=2),
        case("var", "correction", "t", "I:1", "-", "-"),
    ]


def linear_cross_entropy(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None,
    labels: torch.Tensor,
    weights: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    chunk: int = 0,
) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w, b), labels.long(), weights, reduction=reduction, ignore_index=ignore_index)


def linear_loss_cases(dtype: torch.dtype) -> list[Case]:
    """One chunk, several, the last one shorter; a chunk of ignored rows."""
    x, w, b = rand(7, 4, dtype=dtype), rand(9, 4, dtype=dtype), rand(9, dtype=dtype)
    labels, some = ints(0, 8, 3, 3, 1, 5, 2), ints(2, 2, 3, 2, 1, 5, 2)
    weights = rand(9, dtype=dtype, low=0.1, high=1.0)
    return [
        Case((x, w, b, labels)),
        Case((x, w, None, labels), {"reduction": "sum", "chunk": 18}),
        Case((x, w, b, some), {"ignore_index": 2, "chunk": 18}),
        Case((x, w, b, labels, weights), {"ignore_index": 3, "chunk": 27}),
        Case((x, w, b, some.int(), weights), {"ignore_index": 2, "reduction": "sum", "chunk": 1}),
    ]


ROWS = [
    Row("GroupedMatMul", grouped_matmul, grouped_matmul_cases, OWN, refuses=True),
    Row("Linear", lambda x, w, b=None: F.linear(x, w, b), linear_cases, OWN),
    Row("Gemm", gemm, gemm_cases),
    Row("MatMul", torch.matmul, matmul_cases),
    Row("Einsum", einsum, einsum_cases),
    Row("LayerNormalization", layer_norm, layer_norm_cases),
    Row("RMSNormalization", rms_norm, rms_norm_cases),
    Row(
        "GroupNormalization",
        lambda x, s, b, num_groups, epsilon=1e-5: F.group_norm(x, num_groups, s, b, epsilon),
        group_norm_cases,
        no_forms=("size 3 as 0", "size 4 as 0", "size 5 as 0"),
    ),
    Row(
        "InstanceNormalization",
        lambda x, s, b, epsilon: F.instance_norm(x, weight=s, bias=b, eps=epsilon),
        instance_norm_cases,
    ),
    Row("Softmax", lambda x, axis=-1: torch.softmax(x, axis), softmax_cases),
    Row("LogSoftmax", lambda x, axis=-1: torch.log_softmax(x, axis), softmax_cases),
    Row("SoftmaxCrossEntropyLoss", cross_entropy, loss_cases, grads=(0,), no_forms=("size 70 as 0",)),
    Row(
        "LinearCrossEntropy",
        linear_cross_entropy,
        linear_loss_cases,
        OWN,
        grads=(0, 1, 2),
        wide=True,
        float_outputs=(0,),
        tolerance=3e-2,
    ),
    Row("NegativeLogLikelihoodLoss", nll_loss, nll_cases, grads=(0,), no_forms=("size 70 as 0",)),
    Row("Attention", lambda q, k, v, mask=None, **a: attention(q, k, v, mask, **a), attention_cases, refuses=True),
    Row("AttentionDropout", attention, attention_dropout_cases, OWN, refuses=True),
    Row("PhiloxAttention", philox_attention, philox_attention_cases, OWN, refuses=True),
    Row("Dropout", dropout, dropout_cases),
    Row("PhiloxDropout", lambda x, ratio, state, stream: x * (1 - ratio.to(x.dtype)), philox_cases, OWN),
    Row("ATen", aten, aten_cases, "org.pytorch.aten", symbolic=False, refuses=True),
]
