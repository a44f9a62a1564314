"""Rows of the operators that ONNX Runtime's training graphs and attention models hold in com.microsoft."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand, scalar
from .attention import heads

MICROSOFT = "com.microsoft"
Tensor = torch.Tensor


def bias_dropout(x, bias, residual=None, ratio=None, training=None):  # type: ignore[no-untyped-def]
    y = x + bias
    keep = 1 - (0.5 if ratio is None else float(ratio))
    mask = torch.empty_like(y, dtype=torch.bool).bernoulli_(keep) if training else torch.ones_like(y, dtype=torch.bool)
    y = y * mask / (keep if training else 1)
    return y if residual is None else y + residual, mask


def bias_dropout_cases(dtype: torch.dtype) -> list[Case]:
    x, bias, residual = rand(2, 3, 4, dtype=dtype), rand(4, dtype=dtype), rand(2, 3, 4, dtype=dtype)
    ratio = torch.tensor(0.25, dtype=torch.float32)
    return [
        Case((x, bias, residual, ratio, torch.tensor(True)), {}, (3, 4), outputs=2),
        Case((x, bias, None, ratio, torch.tensor(True)), {}, (3, 4)),
        Case((x, bias, residual)),
    ]


def bits(mask: Tensor) -> Tensor:
    """A mask with one bit per element, uint32."""
    flat = F.pad(mask.flatten().long(), (0, -mask.numel() % 32)).view(-1, 32)
    return (flat << torch.arange(32)).sum(1).to(torch.uint32)


def bitmask_bias_dropout(*inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    y, mask = bias_dropout(*inputs)
    return y, bits(mask)


def bitmask_dropout(x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return bitmask_bias_dropout(x, torch.zeros((), dtype=x.dtype), None, ratio, training)


def bitmask_dropout_cases(dtype: torch.dtype) -> list[Case]:
    x, ratio = rand(3, 5, 4, dtype=dtype), torch.tensor(0.25)
    return [Case((x, ratio, torch.tensor(True)), {}, (1, 2), outputs=2), Case((x,), outputs=2)]


def bitmask_dropout_grad(dy: Tensor, mask: Tensor, ratio: Tensor, training: Tensor) -> Tensor:
    kept = (mask.long()[:, None] >> torch.arange(32)) & 1
    return dy * kept.flatten()[: dy.numel()].view(dy.shape) / (1 - float(ratio)) if training else dy


def bitmask_grad_cases(dtype: torch.dtype) -> list[Case]:
    dy = rand(3, 5, 4, dtype=dtype)
    mask = bits(rand(3, 5, 4, dtype=torch.bool))
    return [Case((dy, mask, torch.tensor(0.25), torch.tensor(on))) for on in (True, False)]


def bias_softmax_dropout(
    x: Tensor, bias: Tensor, ratio: Tensor | None = None, *, is_inner_broadcast: int, axis: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    total, keep = x + bias, 1 - (0.5 if ratio is None else float(ratio))
    softmax = torch.softmax(total.flatten(axis), -1).view(total.shape)
    mask = torch.empty_like(softmax, dtype=torch.bool).bernoulli_(keep)
    return softmax * mask / keep, mask, softmax


def bias_softmax_dropout_cases(dtype: torch.dtype) -> list[Case]:
    x, ratio = rand(2, 3, 4, dtype=dtype), torch.tensor(0.25)
    return [
        Case((x, rand(2, 1, 4, dtype=dtype), ratio), {"axis": 2, "is_inner_broadcast": 1}, (2,), outputs=3),
        Case((x, rand(3, 4, dtype=dtype)), {"is_inner_broadcast": 0}, outputs=3),
    ]


def softmax_dropout_grad(dy: Tensor, mask: Tensor, y: Tensor, ratio: Tensor, axis: int = -1) -> Tensor:
    g = dy * mask / (1 - float(ratio))
    return y * (g - (g * y).sum(axis, keepdim=True))


def softmax_dropout_cases(dtype: torch.dtype) -> list[Case]:
    dy, y, ratio = rand(2, 3, 4, dtype=dtype), torch.softmax(rand(2, 3, 4, dtype=dtype), -1), torch.tensor(0.25)
    return [Case((dy, rand(2, 3, 4, dtype=torch.bool), y, ratio), {"axis": a}) for a in (-1, 1)]


def reduce_all(*xs: Tensor) -> Tensor:
    return torch.stack([x.float().square().sum() for x in xs]).sum().sqrt()


def reduce_all_cases(dtype: torch.dtype) -> list[Case]:
    return [Case((rand(2, 3, dtype=dtype), rand(4, dtype=dtype))), Case((rand(3, dtype=dtype),))]


def concat(*xs: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return torch.cat(xs, axis), ints(*(x.shape[axis] for x in xs))


def concat_cases(dtype: torch.dtype) -> list[Case]:
    xs = tuple(rand(2, n, 3, dtype=dtype) for n in (1, 4, 2))
    return [Case(xs, {"axis": 1}, outputs=2), Case((xs[1], xs[1]), {"axis": -1})]


def split_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(4, 3, dtype=dtype)
    return [Case((x, ints(1, 3)), outputs=2), Case((x, ints(2, 0, 1)), {"axis": 1}, (1,), outputs=3)]


def gather_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(4, 3, dtype=dtype)
    return [Case((x, ints(2, 0))), Case((x, ints(-1, 1)), {"axis": 1})]


def pad_and_unflatten(x: Tensor, indices: Tensor, dims: Tensor) -> Tensor:
    rows = x.new_zeros(int(dims.prod()), *x.shape[1:]).index_copy(0, indices, x)
    return rows.view(*dims.tolist(), *x.shape[1:])


def pad_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((rand(3, 2, dtype=dtype), ints(0, 5, 2), ints(2, 3))),
        Case((rand(3, dtype=dtype), ints(3, 1, 0), ints(2, 2)), {}, (2,)),
    ]


def flatten_and_unpad(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return x.flatten(0, 1)[indices], ints(*x.shape[:2])


def unpad_cases(dtype: torch.dtype) -> list[Case]:
    return [Case((rand(2, 3, 4, dtype=dtype), ints(0, 5, 2)), outputs=2), Case((rand(2, 3, dtype=dtype), ints(1, 4)))]


def cross_entropy(scores, labels, weights=None, ignore=None, reduction="mean"):  # type: ignore[no-untyped-def]
    ignored = -100 if ignore is None else int(ignore)
    log_prob = torch.log_softmax(scores, 1)
    return F.nll_loss(log_prob, labels, weights, ignore_index=ignored, reduction=reduction), log_prob


def cross_entropy_cases(dtype: torch.dtype) -> list[Case]:
    scores, labels, weights = rand(4, 3, dtype=dtype), ints(0, 2, 1, 1), rand(3, dtype=dtype, low=0.5)
    deep = rand(2, 3, 4, dtype=dtype), rand(2, 4, dtype=torch.int64, low=0, high=3)
    return [
        Case((scores, labels), outputs=2),
        Case((scores, labels, weights), {"reduction": "sum"}, outputs=2),
        Case((scores, labels, weights, scalar(1)), {"reduction": "mean"}, (3,), outputs=2),
        Case((*deep, None, scalar(2)), {"reduction": "none"}, outputs=2),
    ]


def attend(q, k, v, mask, bias, past, unidirectional, scale):  # type: ignore[no-untyped-def]
    keys = k.shape[2]
    scores = q @ k.mT * (scale or 1 / math.sqrt(q.shape[3]))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        seen = torch.arange(keys) < mask[:, None] if mask.dim() == 1 else mask != 0
        scores = (
            scores
            + (seen[:, None] if seen.dim() == 3 else seen[:, None, None]).logical_not().to(scores.dtype) * -10000.0
        )
    if unidirectional:
        later = torch.arange(keys) > past + torch.arange(q.shape[2])[:, None]
        scores = scores.masked_fill(later, -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def multi_head(
    q, k, v, bias=None, mask=None, added=None, past_k=None, past_v=None, num_heads=1, unidirectional=0, scale=0.0
):  # type: ignore[no-untyped-def]
    if bias is not None:
        bq, bk, bv = bias.split([q.shape[2], k.shape[2], v.shape[2]])
        q, k, v = q + bq, k + bk, v + bv
    q = heads(q, num_heads)
    k, v = (heads(x, num_heads) if x.dim() == 3 else x for x in (k, v))
    if past_k is not None:
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    past = 0 if past_k is None else past_k.shape[2]
    return attend(q, k, v, mask, added, past, unidirectional, scale), k * 1, v * 1


def multi_head_cases(dtype: torch.dtype) -> list[Case]:
    q, k, v = rand(2, 3, 4, dtype=dtype), rand(2, 5, 4, dtype=dtype), rand(2, 5, 6, dtype=dtype)
    past = rand(2, 2, 1, 2, dtype=dtype), rand(2, 2, 1, 3, dtype=dtype)
    two = {"num_heads": 2}
    padding = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 1, 1, 1]], dtype=torch.int32)
    return [
        Case((q, k, v), two),
        Case((q, k, v, rand(14, dtype=dtype), padding), {**two, "scale": 0.5}),
        Case((q, k, v, None, torch.tensor([5, 2], dtype=torch.int32), rand(1, 2, 3, 5, dtype=dtype)), two),
        Case((q, k, v, None, None, None, *past), {**two, "unidirectional": 1}, outputs=3, stock=False),
        Case((q, k, k, None, None, None, past[0], past[0]), two, outputs=3),
        Case((q, heads(k, 2).contiguous(), heads(v, 2).contiguous()), two, stock=False),
        Case((q, heads(k, 2).contiguous(), heads(k, 2).contiguous()), two),
    ]


def self_attention(
    x, w, b=None, mask=None, past=None, added=None, num_heads=1, unidirectional=0, qkv_hidden_sizes=None, scale=0.0
):  # type: ignore[no-untyped-def]
    y = x @ w if b is None else x @ w + b
    q, k, v = (heads(t, num_heads) for t in y.split(qkv_hidden_sizes or y.shape[2] // 3, 2))
    if past is not None:
        k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
    present = torch.stack((k, v)) if k.shape == v.shape else None
    return attend(q, k, v, mask, added, 0 if past is None else past.shape[3], unidirectional, scale), present


def self_attention_cases(dtype: torch.dtype) -> list[Case]:
    x, w, b = rand(2, 3, 4, dtype=dtype), rand(4, 12, dtype=dtype), rand(12, dtype=dtype)
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]], dtype=torch.int32)
    two = {"num_heads": 2}
    return [
        Case((x, w), two, stock=False),
        Case((x, w, b, mask), {**two, "unidirectional": 1}),
        Case((x, w, b, None, rand(2, 2, 2, 1, 2, dtype=dtype)), {**two, "unidirectional": 1}, outputs=2),
        Case(
            (x, rand(4, 14, dtype=dtype), None, None, None, rand(2, 1, 3, 3, dtype=dtype)),
            {**two, "qkv_hidden_sizes": [4, 4, 6], "scale": 0.5},
            stock=False,
        ),
        Case(
            (x, rand(4, 14, dtype=dtype), rand(14, dtype=dtype), None, None, rand(2, 2, 3, 3, dtype=dtype)),
            {**two, "qkv_hidden_sizes": [4, 4, 6], "scale": 0.5},
        ),
    ]


LOOSE = 5e-2
ROWS = [
    Row("BitmaskDropout", bitmask_dropout, bitmask_dropout_cases, MICROSOFT, tolerance=LOOSE),
    Row("BitmaskBiasDropout", bitmask_bias_dropout, bias_dropout_cases, MICROSOFT, tolerance=LOOSE),
    Row(
        "BitmaskDropoutGrad",
        bitmask_dropout_grad,
        bitmask_grad_cases,
        MICROSOFT,
        differentiable=False,
        tolerance=LOOSE,
        refuses=True,
    ),
    Row("BiasSoftmaxDropout", bias_softmax_dropout, bias_softmax_dropout_cases, MICROSOFT, tolerance=LOOSE),
    Row("BiasDropout", bias_dropout, bias_dropout_cases, MICROSOFT, tolerance=LOOSE),
    Row(
        "SoftmaxDropoutGrad",
        softmax_dropout_grad,
        softmax_dropout_cases,
        MICROSOFT,
        differentiable=False,
        tolerance=LOOSE,
    ),
    # A float whatever goes in.
    Row("ReduceAllL2", reduce_all, reduce_all_cases, MICROSOFT, tolerance=LOOSE, smooth=False),
    Row(
        "Inverse",
        torch.linalg.inv,
        lambda t: [
            Case((rand(4, 4, dtype=t) + 5 * torch.eye(4, dtype=t),)),
            Case((rand(2, 3, 3, dtype=t) + 5 * torch.eye(3, dtype=t),)),
        ],
        MICROSOFT,
        wide=True,
    ),
    Row("ConcatTraining", concat, concat_cases, MICROSOFT),
    Row(
        "SplitTraining",
        lambda x, sizes, axis=0: tuple(p * 1 for p in x.split(sizes.tolist(), axis)),
        split_cases,
        MICROSOFT,
    ),
    Row(
        "ShrunkenGather",
        lambda x, i, axis=0: x.index_select(axis, i % x.shape[axis]),
        gather_cases,
        MICROSOFT,
        refuses=True,
    ),
    Row("PadAndUnflatten", pad_and_unflatten, pad_cases, MICROSOFT, refuses=True),
    Row("FlattenAndUnpad", flatten_and_unpad, unpad_cases, MICROSOFT),
    Row(
        "SoftmaxCrossEntropyLossInternal",
        cross_entropy,
        cross_entropy_cases,
        MICROSOFT,
        grads=(0,),
        tolerance=LOOSE,
    ),
    Row("MultiHeadAttention", multi_head, multi_head_cases, MICROSOFT, tolerance=LOOSE, refuses=True),
    Row("Attention", self_attention, self_attention_cases, MICROSOFT, tolerance=LOOSE, refuses=True),
]
