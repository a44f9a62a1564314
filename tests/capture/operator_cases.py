"""Operators in the forms that models use, with inputs (test_operators.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

HALF = torch.bfloat16


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def i(*shape: int, high: int = 3) -> torch.Tensor:
    return torch.randint(0, high, shape)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


def strided_write(x: torch.Tensor, src: torch.Tensor, *place: Any) -> torch.Tensor:
    """`as_strided_scatter`, whose gradient torch takes at the wrong elements unless it is written like this."""
    x.as_strided(*place).copy_(src)
    return x * 1


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "add broadcast": (lambda x, y: x + y, (r(3, 4), r(4))),
    "add int and float": (lambda x, y: x + y, (r(3, 4), i(3, 4))),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=0.3), (r(3), r(3))),
    "add half and inexact scalar": (lambda x: x * 0.1 + 1e-3, (r(64, dtype=HALF),)),
    "add half and exact scalar": (lambda x: x * 0.5 + 2, (r(64, dtype=HALF),)),
    "add half and 0-d float": (lambda x, y: x * y, (r(4, dtype=HALF), torch.tensor(2.0))),
    "scalar minus": (lambda x: 1 - x, (r(3),)),
    "scalar divided": (lambda x: 1 / (x * x + 1), (r(3),)),
    "divide ints": (lambda x, y: x / y, (i(3), i(3) + 1)),
    "floor divide": (lambda x, y: (x // 2, y.detach() // 0.7), (i(5, high=9) - 4, r(5))),
    "remainders of floats": (
        lambda x, y: (x % 0.7, x % -0.7, x.remainder(y), torch.fmod(x, y), x.fmod(0.3), 1.0 % y.detach()),
        (r(9), r(9)),
    ),
    "mathematics of two operands": (
        lambda x, y: (torch.atan2(x, y), torch.hypot(x, y), torch.logaddexp(x, y), torch.xlogy(x, y * y)),
        (r(3, 4), r(4)),
    ),
    "product with the logarithm of a number": (
        lambda x: (torch.xlogy(x, 3.0), torch.special.xlogy(2, x * x + 1)),
        (r(4),),
    ),
    "interpolation of tensors": (
        lambda x, y, w: (x.lerp(y, 0.3), torch.lerp(x, y[0], 0.7), torch.lerp(x, y, w)),
        (r(3, 4), r(3, 4), r(4)),
    ),
    "scaled product and quotient added": (
        lambda x, y, z: (torch.addcmul(x, y, z, value=0.3), x.addcdiv(y, z * z + 1), x.int().addcmul(y.int(), z.int())),
        (r(3, 4), r(4), r(3, 1)),
    ),
    "remainder of ints": (lambda x: x % 3, (i(5, high=9) - 4,)),
    "powers": (lambda x: x**2 + x**3 + (x * x + 1) ** 0.5 + 2.0**x, (r(5),)),
    "power of tensors": (lambda x, y: (x * x + 1) ** y, (r(5), r(5))),
    "comparisons": (lambda x, y: (x == y, x != 1, x < y, x <= 0.5, x > y, x >= y), (i(9), r(9))),
    "compare bools": (lambda x, y: (x == y, x > y), (b(9), b(9))),
    "logic": (lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_not(y)), (b(9), b(9))),
    "logic of numbers": (lambda x, y: (torch.logical_and(x, y), torch.logical_not(x), x & 2, ~x), (i(9), i(9))),
    "where": (
        lambda c, x, y: torch.where(c, x, y) + torch.where(c, x, 0.5) + torch.where(c, 1.0, x),
        (b(9), r(9), r(9)),
    ),
    "masked fill": (lambda x, m: x.masked_fill(m, torch.finfo(x.dtype).min), (r(9), b(9))),
    "unary": (
        lambda x: (x.relu(), x.tanh(), x.sigmoid(), x.exp(), x.neg(), x.abs(), x.cos(), x.sin(), x.erf()),
        (r(9),),
    ),
    "unary of positive": (
        lambda x: ((x * x + 1).log(), (x * x + 1).sqrt(), (x * x + 1).rsqrt(), (x * x + 1).reciprocal()),
        (r(9),),
    ),
    "unary of ints": (lambda x: (x.sin(), x.sqrt(), x.abs(), x.neg(), x.floor(), x.sigmoid()), (i(9),)),
    "rounding": (lambda x: (x.floor(), x.ceil(), x.sign(), (3 * x).round(), (9 * x).int().round()), (r(9),)),
    "logarithms and powers of two and ten": (
        lambda x: (x.abs().log2(), x.abs().log10(), x.exp2(), torch.special.exp2(x), x.int().abs().add(2).log2()),
        (r(9),),
    ),
    "trigonometry": (
        lambda x: (x.tan(), x.sinh(), x.cosh(), x.asinh(), x.arctan(), (1 + x.abs()).acosh()),
        (r(9),),
    ),
    "inverse functions": (lambda x: (x.sin().div(2).asin(), x.sin().div(2).acos(), x.tanh().div(2).atanh()), (r(9),)),
    "activations": (
        lambda x: (
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.softplus(x),
            F.leaky_relu(x, 0.2),
            F.elu(x, 1.5),
            F.hardswish(x),
            F.relu6(x),
            F.hardtanh(x, -0.5, 0.5),
        ),
        (r(9),),
    ),
    "further activations": (
        lambda x: (
            F.celu(x, 0.7),
            F.selu(x),
            F.mish(x),
            F.hardsigmoid(3 * x),
            F.softshrink(x, 0.4),
            F.hardshrink(x),
            F.threshold(x, 0.1, 2.0),
            F.softplus(x, beta=2.0),
            F.softplus(x, beta=0.5, threshold=0.3),
        ),
        (r(9),),
    ),
    "gated": (lambda x: (F.glu(x), F.glu(x, 0)), (r(4, 6),)),
    "leak per channel": (
        lambda x, w, v: (F.prelu(x, w), F.prelu(x, v), F.prelu(x[:, :, 0], w), F.prelu(x[0, 0, 0], v)),
        (r(2, 3, 4), r(3), r(1)),
    ),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clamp(min=0.1), x.clamp(max=0), x.clamp_min(0.2), x.clip(0, 1)), (r(9),)),
    "minimum and maximum": (
        lambda x, y: (torch.minimum(x, y), torch.maximum(x, y), torch.max(x, y), torch.min(x, y)),
        (r(9), r(9)),
    ),
    "casts": (
        lambda x, y: (
            x.to(torch.float64),
            x.half(),
            x.long(),
            y.float(),
            x.type_as(y),
            x.to(y),
            x.bool(),
            x.to(torch.float32),
        ),
        (r(9), i(9)),
    ),
    "views": (
        lambda x: (
            x.view(-1),
            x.reshape(4, 6),
            x.flatten(1),
            x.unflatten(2, (2, 2)),
            x.view_as(x),
            x[None],
            x.squeeze(0),
        ),
        (r(2, 3, 4),),
    ),
    "permutations": (
        lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x[0].t(), x[0].T, x.mT, x.movedim(0, 2), x.swapaxes(0, 1)),
        (r(2, 3, 4),),
    ),
    "squeeze": (lambda x: (x.squeeze(), x.squeeze(0), x.squeeze(1), x.squeeze((0, 2))), (r(1, 3, 1, 2),)),
    "expand": (
        lambda x: (x.expand(3, 4), x.expand(2, -1, 4), x.expand_as(torch.ones(5, 3, 4)), x.broadcast_to(3, 4)),
        (r(1, 4),),
    ),
    "repeat": (lambda x: (x.repeat(2, 3), x.repeat(2, 1, 3)), (r(2, 3),)),
    "slices": (
        lambda x: (x[1:], x[:, :-1], x[::2, 1:5:2], x[-2:], x[..., 0], x[1], x[:, -1], x.narrow(1, 1, 2)),
        (r(4, 6),),
    ),
    "splits": (
        lambda x: (*x.split(2, 1), *x.chunk(3, 0), *x.split([1, 4], 1), *x.unbind(0), *x.split(5, 1)),
        (r(4, 5),),
    ),
    "joins": (
        lambda x, y: (torch.cat([x, y]), torch.cat([x, y.double()], -1), torch.stack([x, y]), torch.stack([x, y], -1)),
        (r(2, 3), r(2, 3)),
    ),
    "pads": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, -1), value=3.5), F.pad(x, (1, 0), value=float("-inf"))),
        (r(3, 4),),
    ),
    "scatters of slices": (
        lambda x, y: (torch.slice_scatter(x, y, 1, 1, 3), torch.select_scatter(x, y[:, 0], 1, -1)),
        (r(3, 4), r(3, 2)),
    ),
    "sums": (
        lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.sum(dtype=torch.float64), x.sum(-1)),
        (r(2, 3, 4),),
    ),
    "sums of ints": (lambda x, m: (x.sum(), m.sum(), m.sum(0), x.int().sum(0, dtype=torch.int32)), (i(3, 4), b(3, 4))),
    "means": (
        lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True), x.mean(dtype=torch.float64)),
        (r(2, 3, 4),),
    ),
    "extrema": (lambda x: (x.amax(1), x.amin((0, 1), keepdim=True), x.max(), x.min(), x.amax()), (r(2, 3, 4),)),
    "indices of extrema": (lambda x: (x.argmax(-1), x.argmin(0, keepdim=True), x.argmax()), (r(3, 4),)),
    "cumulative sum": (lambda x, m: (x.cumsum(1), m.cumsum(0), x.cumsum(-1, dtype=torch.float64)), (r(3, 4), b(3, 4))),
    "top k": (lambda x: (*x.topk(2), *x.topk(2, 0, largest=False)), (r(3, 4),)),
    "triangles": (lambda x, m: (x.tril(), x.triu(1), m.tril(-1)), (r(4, 4), b(4, 4))),
    "softmaxes": (lambda x: (x.softmax(-1), x.log_softmax(0), x.softmax(1, dtype=torch.float64)), (r(3, 4),)),
    "creation": (
        lambda x: (
            torch.zeros(2, 3),
            torch.ones(2, dtype=torch.int64),
            torch.full((2,), 3.5),
            torch.zeros_like(x),
            torch.ones_like(x),
            x.new_zeros(2),
            x.new_full((2,), 7),
            torch.full_like(x, 2),
            x.new_ones(2, dtype=torch.bool),
            torch.tensor(3.0) + x,
        ),
        (r(4),),
    ),
    "ranges": (
        lambda x: (torch.arange(5), torch.arange(1, 7, 2), torch.arange(0, 1, 0.25), torch.arange(3.0) + x.sum()),
        (r(4),),
    ),
    "range of rounded bounds": (lambda x: torch.arange(0.0, -8.000001, -4.0) * x.sum(), (r(4),)),
    "embedding": (lambda w, x: F.embedding(x, w) + F.embedding(x, w, padding_idx=1), (r(5, 4), i(3, 2))),
    "gathers": (
        lambda x, j: (x.index_select(0, j), x[j], x[:, j], x.gather(1, j[None].expand(3, -1)), x[j, j], x[:, None][j]),
        (r(3, 4), i(5)),
    ),
    "scatters": (
        lambda x, j, s: (x.scatter(1, j, s), x.scatter(1, j, 0.5), x.scatter_add(1, j, s)),
        (r(3, 4), torch.tensor([[0, 2], [1, 3], [3, 0]]), r(3, 2)),
    ),
    "index with several tensors": (lambda x, j, k: (x[:, j, k], x[j, :, k]), (r(3, 4, 5), i(6), i(6))),
    "linear algebra": (
        lambda x, y, z: (
            x @ y,
            torch.mm(x, y),
            torch.bmm(z, z),
            x @ y[:, 0],
            y[:, 0] @ y[:, 0],
            torch.addmm(y[0], x, y),
            z @ z[0],
        ),
        (r(3, 4), r(4, 5), r(2, 4, 4)),
    ),
    "linear": (lambda x, w, v: (F.linear(x, w, v), F.linear(x, w)), (r(2, 3, 4), r(5, 4), r(5))),
    "layer norm": (
        lambda x, w, v: (F.layer_norm(x, (4,), w, v), F.layer_norm(x, (3, 4)), F.layer_norm(x, (4,), w)),
        (r(2, 3, 4), r(4), r(4)),
    ),
    "layer norm of half in float": (lambda x, w, v: F.layer_norm(x, (64,), w, v), (r(3, 64, dtype=HALF), r(64), r(64))),
    "rms norm": (lambda x, w: (F.rms_norm(x, (4,), w), F.rms_norm(x, (4,), eps=1e-3)), (r(2, 3, 4), r(4))),
    "group norm": (lambda x, w, v: (F.group_norm(x, 2, w, v), F.group_norm(x, 4)), (r(2, 4, 5), r(4), r(4))),
    "batch norm evaluated": (
        lambda x, m, v, w: (
            F.batch_norm(x, m.detach(), v.detach().abs() + 1),
            F.batch_norm(x, m.detach(), v.detach().abs() + 1, w, m),
        ),
        (r(5, 4), r(4), r(4), r(4)),
    ),
    "convolutions": (
        lambda x, w, v: (
            F.conv2d(x, w, v, 2, 1),
            F.conv2d(x, w, padding="same"),
            F.conv2d(x, w[:, :1], groups=2, dilation=2),
        ),
        (r(2, 2, 7, 7), r(4, 2, 3, 3), r(4)),
    ),
    "convolutions of 1 and 3 dims": (
        lambda x, w, y, v: (F.conv1d(x, w, padding=1), F.conv3d(y, v), F.conv1d(x, w, padding="valid")),
        (r(2, 3, 8), r(4, 3, 4), r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2)),
    ),
    "pools": (
        lambda x: (
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (2, 4)),
            F.max_pool1d(x[0], 2),
        ),
        (r(2, 3, 8, 8),),
    ),
    "dropout kept": (lambda x: (F.dropout(x, 0.0), F.dropout(x, 0.5, training=False)), (r(9),)),
    "dropout drawn": (lambda x: F.dropout(x, 0.3), (r(99),)),
    "attention": (
        lambda q, k, m, f: (
            F.scaled_dot_product_attention(q, k, k),
            F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
            F.scaled_dot_product_attention(q, k, k, attn_mask=m),
            F.scaled_dot_product_attention(q, k, k, attn_mask=f),
        ),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), torch.ones(4, 5, dtype=torch.bool).tril(1), r(2, 1, 4, 5)),
    ),
    "attention of 3 dims": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (r(2, 4, 8), r(2, 4, 4)),
    ),
    "attention of groups": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (r(2, 4, 3, 8), r(2, 2, 3, 8)),
    ),
    "attention with dropout": (lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.4), (r(2, 3, 4, 8),)),
    "cross entropy": (
        lambda x, y, w: (
            F.cross_entropy(x, y),
            F.cross_entropy(x, y, w.detach(), ignore_index=1),
            F.cross_entropy(x, y, reduction="sum"),
            F.cross_entropy(x, y, reduction="none"),
        ),
        (r(6, 3), torch.tensor([0, 2, 1, 0, 2, 1]), r(3).abs()),
    ),
    "cross entropy smoothed": (
        lambda x, y, w: (
            F.cross_entropy(x, y, label_smoothing=0.1),
            F.cross_entropy(x, y, w.detach(), ignore_index=1, label_smoothing=0.3),
            F.cross_entropy(x[..., None], y[:, None], w.detach(), reduction="sum", label_smoothing=1.0),
            F.cross_entropy(x, y, reduction="none", label_smoothing=0.2),
        ),
        (r(6, 3), torch.tensor([0, 2, 1, 0, 2, 1]), r(3).abs()),
    ),
    "cross entropy of probabilities": (
        lambda x, y, w: (
            F.cross_entropy(x, y.softmax(1)),
            F.cross_entropy(x, y, w.detach(), label_smoothing=0.3),
            F.cross_entropy(x[..., None], y[..., None], w.detach(), reduction="sum"),
            F.cross_entropy(x, y, reduction="none", label_smoothing=0.2),
        ),
        (r(6, 3), r(6, 3), r(3).abs()),
    ),
    "cross entropy over positions": (lambda x, y: F.cross_entropy(x, y), (r(2, 3, 5), i(2, 5))),
    "negative log likelihood": (lambda x, y: F.nll_loss(x.log_softmax(-1), y), (r(6, 3), i(6))),
    "mean squared error": (
        lambda x, y: (F.mse_loss(x, y), F.mse_loss(x, y, reduction="sum"), F.mse_loss(x, y, reduction="none")),
        (r(6), r(6)),
    ),
    "absolute error": (
        lambda x, y: (
            F.l1_loss(x, y),
            F.smooth_l1_loss(x, y, beta=0.3),
            F.smooth_l1_loss(x, y, reduction="sum", beta=0),
            F.huber_loss(x, y, delta=0.7, reduction="none"),
        ),
        (r(6), r(6)),
    ),
    "binary cross entropy of logits": (
        lambda x, y, w: (
            F.binary_cross_entropy_with_logits(x, y),
            F.binary_cross_entropy_with_logits(x, y, w.detach().exp(), reduction="sum"),
            F.binary_cross_entropy_with_logits(x, y, pos_weight=w.detach().exp(), reduction="none"),
        ),
        (20 * r(3, 4), r(3, 4).sigmoid(), r(4)),
    ),
    "clamp by tensors": (
        lambda x, y, z: (
            x.clamp(min=y),
            x.clamp(max=z[0]),
            torch.clamp(x, y, z),
            x.clamp_max(z),
            (x * 9).long().clamp(y.long()),
        ),
        (r(3, 8), r(8), r(3, 1)),
    ),
    "linspace": (
        lambda x: (x + torch.linspace(0.1, 1, 4), x.double() * torch.linspace(-1, 1, 1, dtype=torch.float64)),
        (r(4),),
    ),
    "scaled product and sum": (
        lambda x, a, y: (torch.addmm(x, a, y, beta=0.3, alpha=2), torch.addmm(x[0], a, y, alpha=-0.7)),
        (r(3, 5), r(3, 4), r(4, 5)),
    ),
    "scaled product and sum in half": (
        lambda x, a, y: torch.addmm(x, a, y, beta=0.3, alpha=0.7),
        (r(3, 5, dtype=HALF), r(3, 4, dtype=HALF), r(4, 5, dtype=HALF)),
    ),
    "divergence": (
        lambda x, y: (
            F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
            F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="sum", log_target=True),
        ),
        (r(3, 4), r(3, 4)),
    ),
    "cosine similarity": (
        lambda x, y: (F.cosine_similarity(x, y), F.cosine_similarity(x, y[:1], -1), F.cosine_similarity(x, y, 0)),
        (r(3, 4), r(3, 4)),
    ),
    "instance norm": (
        lambda x, w, b: (F.instance_norm(x), F.instance_norm(x[..., 0], weight=w, bias=b)),
        (r(2, 3, 4, 5), r(3), r(3)),
    ),
    "instance norm with statistics": (
        lambda x, m, v: F.instance_norm(x, m.detach(), v.detach().exp(), use_input_stats=False),
        (r(2, 3, 4), r(3), r(3)),
    ),
    "scatter with a reduction": (
        lambda x, j, v: (
            *(x.scatter_reduce(1, j, v, how) for how in ("sum", "mean", "amax", "amin")),
            *(x.scatter_reduce(1, j, v, how, include_self=False) for how in ("sum", "mean")),
            x.scatter_add(1, j[:2, :3], v.detach()),
        ),
        (r(3, 4), i(3, 4), r(3, 4)),
    ),
    "copies": (
        lambda x, y: (
            torch.ops.aten.copy(x.detach(), y.detach()),
            torch.fill(x, 2.0),
            x.clone(),
            x.contiguous(),
            x.detach(),
        ),
        (r(3, 4), r(4)),
    ),
    "sort": (lambda x: x.sort(dim=0, descending=True), (r(3, 4),)),
    "index put": (lambda x, j, v: x.index_put((j,), v, accumulate=True), (r(4), i(3), r(3))),
    "index put with a hole": (
        lambda x, j, v: torch.ops.aten.index_put(x, [None, j], v),
        (r(2, 4), torch.tensor([1, 2]), r(2, 2)),
    ),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), (r(3, 4),)),
    "flip and roll": (lambda x: x.flip([0, 1]) + x.roll(1, 0), (r(3, 4),)),
    "max along a dim": (lambda x: x.max(1), (r(3, 4),)),
    "histogram": (lambda x: torch.histc(x, 4, -1.0, 1.0), (r(8),)),
    "order": (
        lambda x: (*x.topk(2), x.argsort(1), *torch.sort(x, dim=0, stable=True), *x.min(0, keepdim=True)),
        (r(3, 4),),
    ),
    "index put of a number": (lambda x, m: x.index_put((m,), torch.tensor(2.0)), (r(3, 4), b(3))),
    "repeated elements": (lambda x: (x.repeat_interleave(2, 1), x.flatten().repeat_interleave(3)), (r(3, 4),)),
    "differences": (lambda x, y: (x.diff(dim=0), y.diff(), x.diff(prepend=x[:, :1])), (r(3, 4), b(3, 4))),
    "roll along two axes": (lambda x: x.roll((-1, 5), (0, 1)).flip(1), (r(3, 4),)),
    "log-sum-exp and norms": (
        lambda x: (x.logsumexp(1), torch.linalg.vector_norm(x, dim=1), x.log1p()),
        (r(3, 4).abs(),),
    ),
    "diagonal filled": (
        lambda x, y: ((x * 2).fill_diagonal_(3.0), (y @ x).fill_diagonal_(-torch.inf).softmax(-1)),
        (r(3, 4), r(4, 3)),
    ),
    "diagonals": (
        lambda x, y: (
            *(torch.diag(x, 1), torch.diag(y[0, 0], -1), torch.diag_embed(y, -2), (x @ x.T).trace()),
            *(x.diagonal(-1), y.diagonal(1, 2, 0), torch.diagonal_scatter(x, x[0, :3] * 2)),
            torch.diagonal_scatter(y, y[:2, :, 0].T * 2, 1, 0, 2),
        ),
        (r(3, 4), r(2, 3, 4)),
    ),
    "as strided": (
        lambda x: (
            (x * x).as_strided((2, 3), (1, 2), 1),
            (x * 2).t().as_strided((2, 2), (4, 2)),
            strided_write(x * 3, x[0, :3] + 1, (3,), (5,), 0),
        ),
        (r(3, 4),),
    ),
    "covariance": (lambda x: (torch.cov(x), x[0].cov(correction=0), torch.corrcoef(x)), (r(3, 5),)),
    "identity matrix and empty": (lambda x: x @ torch.eye(4, 3) + torch.empty_like(x[:, :3]).fill_(2), (r(3, 4),)),
    "interpolate": (
        lambda x: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, scale_factor=2.0, mode="bilinear")),
        (r(1, 2, 3, 3),),
    ),
    "interpolate to a size": (
        lambda x: (
            F.interpolate(x, size=(5, 7), mode="bilinear"),
            F.interpolate(x, size=(5, 6), mode="bilinear", align_corners=True),
        ),
        (r(1, 2, 3, 4),),
    ),
    "transposed convolution": (
        lambda x, w, v, b: (
            F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2),
            F.conv_transpose1d(x[0], v, dilation=2),
        ),
        (r(2, 4, 5, 5), r(4, 3, 3, 3), r(5, 2, 3), r(6)),
    ),
    "normalized weight": (lambda v, g: torch._weight_norm(v, g, 2), (r(3, 4, 5), r(1, 1, 5))),
    "variance": (lambda x: (x.var(0, correction=0), x.var(dim=(0, 1), keepdim=True)), (r(3, 4),)),
    "deviation": (
        lambda x: (x.std(), x.std(1), x.std((0, 2), correction=0, keepdim=True), x.std(-1, False, True)),
        (r(2, 3, 4),),
    ),
    "moments": (lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x), *torch.std_mean(x, 0, keepdim=True)), (r(3, 4),)),
    "deviation of halves": (lambda x: (x.std(0), *torch.var_mean(x, 1)), (r(3, 4, dtype=HALF),)),
    "products": (lambda x, y: (x.prod(), x.prod(1), x.prod(0, keepdim=True), y.prod(1)), (r(3, 4), i(3, 4))),
    "log of sigmoid": (lambda x: F.logsigmoid(x), (r(9),)),
    "division towards zero": (lambda x, y: torch.div(x - 4, y + 1, rounding_mode="trunc"), (i(9, high=9), i(9))),
    "index add": (lambda x, j, v: (x.index_add(1, j, v), x[0].index_add(0, j, v[0])), (r(2, 4), i(3), r(2, 3))),
    "batch norm without statistics": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True),
        (r(3, 4, 5), r(4)),
    ),
    "scaled product plus": (lambda x, y: torch.baddbmm(x, y, y, beta=0.5, alpha=2.0), (r(2, 3, 3), r(2, 3, 3))),
    "exponential minus one": (lambda x: x.expm1(), (r(4),)),
    "grouped product": (
        lambda x, w, ends: torch.ops.aten._grouped_mm(x, w, ends),
        (r(6, 8, dtype=HALF), r(3, 8, 8, dtype=HALF), torch.tensor([2, 2, 6], dtype=torch.int32)),
    ),
    "grouped product in float32": (
        lambda x, w, ends: torch.ops.aten._grouped_mm(x, w, ends) + torch.ops.aten._grouped_mm(x, w.mT, ends),
        (r(6, 8), r(3, 8, 8), torch.tensor([1, 4, 6], dtype=torch.int32)),
    ),
}
