"""Modules at the ends of their types and of their tables: what eager gives or refuses, ORTModule gives or refuses.

Infinities, NaN, constant rows, scores that overflow, rows without a score; positions and labels at and beyond
both ends.
Single operators in all their forms are in tests/ops/test_ends.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ortmodule import ORTModule

from ..ops.ends import constant, everywhere, mismatch, planted, seeds_of, wanted

ROWS, WIDTH = 25, 33
TYPES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


class Apart(nn.Module):
    """Function k of input k; with `fused` between negations, which fusion joins with elementwise ones."""

    def __init__(self, functions: list[Callable[..., Tensor]], fused: bool) -> None:
        super().__init__()
        self.functions, self.fused = functions, fused

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        if self.fused:
            return tuple(-f(-torch.neg(x * 1.0)) for f, x in zip(self.functions, xs, strict=True))
        return tuple(f(x) for f, x in zip(self.functions, xs, strict=True))


def values_and_gradients(module: nn.Module, x: Tensor, count: int) -> list[Tensor]:
    """For each of the functions its result and its input's gradient, of a fixed projection."""
    xs = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(count)]
    ys = module(*xs)
    torch.autograd.backward(ys, seeds_of(ys))
    return [t for x, y in zip(xs, ys, strict=True) for t in (y.detach(), x.grad) if t is not None]


def compare(functions: dict[str, Callable[..., Tensor]], feeds: list[Tensor], fused: bool, zeros: bool) -> None:
    eager = Apart(list(functions.values()), fused)
    ours = ORTModule(copy.deepcopy(eager))
    for x in feeds:
        got = values_and_gradients(ours, x, len(functions))
        wants = wanted(lambda v: values_and_gradients(eager, v[0], len(functions)), [x])
        wrong = []
        for k, (y, *w) in enumerate(zip(got, *wants, strict=True)):
            name, gradient = list(functions)[k // 2], k % 2 == 1
            if found := mismatch(y, list(w), TYPES[x.dtype], zeros and not gradient):
                wrong.append(f"{name}, {'gradient' if gradient else 'value'}: {found}")
        assert not wrong, "\n".join(wrong)


UNITS: dict[str, Callable[..., Tensor]] = {
    "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "relu": F.relu, "elu": F.elu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "softplus": F.softplus, "mish": F.mish,
    "logsigmoid": F.logsigmoid, "hardswish": F.hardswish, "selu": F.selu, "leaky relu": F.leaky_relu,
    "softsign": F.softsign, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "abs": torch.abs, "sign": torch.sign,
    "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc, "clamp": lambda x: x.clamp(-1, 2), "clamp min": lambda x: x.clamp(min=0.5),
    "cube": lambda x: x**3, "root": lambda x: x**0.5, "power": lambda x: x**2.5, "two to": lambda x: 2.0**x,
    "over a number": lambda x: x / 3, "number over": lambda x: 2 / x, "fmod": lambda x: torch.fmod(x, 0.7),
    "remainder": lambda x: x % 0.7, "where": lambda x: torch.where(x > 0, x, x * 2), "over itself": lambda x: x / x,
    "less itself": lambda x: x - x, "times nothing": lambda x: x * 0, "nan_to_num": torch.nan_to_num,
}  # fmt: skip


@pytest.mark.parametrize("fused", [False, True], ids=["alone", "fused"])
def test_units(fused: bool) -> None:
    compare(UNITS, [everywhere(torch.empty(ROWS, WIDTH), False)], fused, True)


WEIGHT, BIAS = torch.linspace(-1, 1.5, WIDTH), torch.linspace(0.5, -2, WIDTH)
LABELS = torch.arange(ROWS)
OVER_ROWS: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda x: x.softmax(-1), "softmax of columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1), "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp of columns": lambda x: x.logsumexp(0), "less its logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,), WEIGHT.to(x.dtype), BIAS.to(x.dtype)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1), "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "max": lambda x: x.max(-1).values, "norm": lambda x: x.norm(dim=-1), "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values, "topk": lambda x: x.topk(3, -1).values, "prod": lambda x: x.prod(-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS, reduction="none"),
    "smooth cross_entropy": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1, reduction="none"),
    "nll_loss": lambda x: F.nll_loss(x.log_softmax(-1), LABELS), "max_pool": lambda x: F.max_pool1d(x[None], 3),
    "mse": lambda x: F.mse_loss(x, x * 0.5),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.3), reduction="none"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=["float32", "bfloat16"])
def test_over_rows(dtype: torch.dtype) -> None:
    base = torch.linspace(-2, 2, ROWS * WIDTH).view(WIDTH, ROWS).t().contiguous().to(dtype)
    rows = constant(base, False)
    # In constant rows of huge numbers eager's gradient of a norm is what rounding leaves; its values are tested below.
    rows = torch.where(rows.isfinite() & (rows.abs() > 1e6), 1e3, rows)
    compare(OVER_ROWS, [planted(base, False), rows], False, False)


@pytest.mark.parametrize("width", [1, 7, 16, 17, 64, 65, 300])
def test_layer_norm_of_a_constant_row_is_its_bias(width: int) -> None:
    norm = nn.LayerNorm(width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.tensor([88.7228, 1e-30, -3e7, 9e18, 3.4e38])[:, None].expand(5, width).contiguous()
    assert torch.equal(ORTModule(norm)(x), norm.bias.expand(5, width))


class Attention(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.how)


def heads(keys: int, scale: float = 1.0, size: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, n, size, generator=generator) * s for n, s in ((9, scale), (keys, scale), (keys, 1.0))]


def attends_alike(module: nn.Module, inputs: list[Tensor], mask: Tensor | None = None, scale: float = 1) -> None:
    """As one of eager's two ways: its tiled kernel loses a NaN here and there, the composition scales its operands
    before the product. `scale`: of the operands, which gradients have what rounding leaves from."""
    results = []
    for m, how in ((ORTModule(module), nullcontext()), (module, nullcontext()), (module, sdpa_kernel(SDPBackend.MATH))):
        leaves = [x.clone().requires_grad_() for x in inputs]
        with how:
            y = m(*leaves) if mask is None else m(*leaves, mask)
            y.backward(torch.linspace(-1, 1.3, y.numel()).view_as(y))
        results.append([y.detach(), *(x.grad / scale for x in leaves if x.grad is not None)])
    for what, got, *want in zip("yqkv", *results, strict=True):
        assert not (found := mismatch(got, list(want), 2e-4)), f"{what}: {found}"


@pytest.mark.parametrize("keys", [5, 17, 130])
class TestAttention:
    def test_scores_that_overflow(self, keys: int) -> None:
        inputs = heads(keys, 1e20)
        for x in inputs[:2]:
            x[..., 1:] = 0  # no sum of both infinities, which would depend on its order
        attends_alike(Attention(), inputs, scale=1e20)

    @pytest.mark.parametrize("size", [8, 16, 24])  # whose root is no power of two, as that of 16 is
    def test_scores_far_apart(self, keys: int, size: int) -> None:
        attends_alike(Attention(), heads(keys, 1e4, size), scale=1e4)

    @pytest.mark.parametrize("size", [8, 16])
    def test_scores_that_lie_close_and_far_from_zero(self, keys: int, size: int) -> None:
        q, k, v = heads(keys, 1.0, size)
        q[..., 0] = 512.0  # multiples of a sixteenth, so that no product rounds
        k[..., 0] = 1024.0 + torch.arange(keys) % 5 * 0.0625
        q[..., 1:] = k[..., 1:] = 0
        attends_alike(Attention(scale=2.0**-6 / 3), [q, k, v], scale=512)

    @pytest.mark.parametrize("end", [torch.inf, -torch.inf, torch.nan])
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_an_end_in_an_operand(self, keys: int, which: int, end: float) -> None:
        inputs = heads(keys)
        inputs[which][0, 1, 2, 3] = end
        attends_alike(Attention(), inputs)

    @pytest.mark.parametrize("boolean", [True, False], ids=["boolean", "additive"])
    def test_rows_without_a_score(self, keys: int, boolean: bool) -> None:
        seen = torch.rand(2, 1, 9, keys, generator=torch.Generator().manual_seed(5)) < 0.7
        seen[:, :, 4] = False
        seen[1, :, 0] = False
        mask = seen if boolean else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        attends_alike(Attention(), heads(keys), mask)

    def test_masks_of_the_lowest_number(self, keys: int) -> None:
        seen = torch.rand(2, 1, 9, keys, generator=torch.Generator().manual_seed(5)) < 0.7
        seen[:, :, 4] = False
        attends_alike(Attention(), heads(keys), torch.zeros(seen.shape).masked_fill(~seen, torch.finfo().min))


class Reads(nn.Module):
    """A function of a table [6, 4] and positions."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.table = nn.Parameter(torch.arange(24.0).view(6, 4) * 0.37 - 2)

    def forward(self, positions: Tensor) -> Tensor:
        return self.function(self.table, positions)


def first(w: Tensor, i: Tensor) -> Tensor:
    return w[:1, : i.numel()]


# By position: the function, and the size of what the positions point into.
READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "embedding": (lambda w, i: F.embedding(i, w), 6),
    "embedding with padding": (lambda w, i: F.embedding(i, w, padding_idx=2), 6),
    "index_select": (lambda w, i: w.index_select(0, i), 6),
    "index_select of columns": (lambda w, i: w.index_select(1, i), 4),
    "brackets": (lambda w, i: w[i], 6),
    "brackets of columns": (lambda w, i: w[:, i], 4),
    "brackets of both": (lambda w, i: w[i, i], 4),
    "gather": (lambda w, i: w.gather(1, i[None].expand(6, -1)), 4),
    "take_along_dim": (lambda w, i: torch.take_along_dim(w, i[None], 1), 4),
    "take": (lambda w, i: w.take(i), 24),
    "scatter": (lambda w, i: torch.zeros(6, 4).scatter(1, i[None], first(w, i)), 4),
    "scatter of a number": (lambda w, i: w.scatter(1, i[None], 0.5), 4),
    "scatter_add": (lambda w, i: torch.zeros(6, 4).scatter_add(1, i[None], first(w, i)), 4),
    "scatter_reduce": (lambda w, i: w.scatter_reduce(1, i[None], first(w, i), "amax"), 4),
    "index_add": (lambda w, i: torch.zeros(6, 4).index_add(0, i, w[: i.numel()]), 6),
    "index_put": (lambda w, i: torch.zeros(6, 4).index_put((i,), w[: i.numel()]), 6),
    "index_copy": (lambda w, i: torch.zeros(6, 4).index_copy(0, i, w[: i.numel()]), 6),
    "one_hot": (lambda w, i: F.one_hot(i, 6).float() @ w, 6),
    "cross_entropy": (lambda w, i: F.cross_entropy(w[:3], i), 4),
    "cross_entropy that ignores -1": (lambda w, i: F.cross_entropy(w[:3], i, ignore_index=-1), 4),
    "cross_entropy by weights": (lambda w, i: F.cross_entropy(w[:3], i, weight=torch.ones(4)), 4),
    "smooth cross_entropy": (lambda w, i: F.cross_entropy(w[:3], i, label_smoothing=0.1), 4),
    "cross_entropy of a product": (lambda w, i: F.cross_entropy(w[:3] @ w.T @ w, i), 4),
    "nll_loss": (lambda w, i: F.nll_loss(w[:3].log_softmax(-1), i), 4),
}


def outcome(module: nn.Module, positions: Tensor) -> list[Tensor] | Exception:
    """Value and gradient, or the error; gradients are those of this call alone."""
    (table,) = module.parameters()
    table.grad = None
    try:
        y = module(positions)
        y.backward(torch.linspace(-1, 1.3, y.numel()).view_as(y))
    except (RuntimeError, IndexError) as error:
        assert table.grad is None
        return error
    assert table.grad is not None
    return [y.detach(), table.grad.clone()]


@pytest.mark.parametrize("name", READS)
def test_positions_at_and_beyond_both_ends(name: str) -> None:
    """Eager's rows or an error of eager's type; the module goes on working after each."""
    function, size = READS[name]
    eager, ours = Reads(function), ORTModule(Reads(function))
    good = torch.tensor([0, 1, size - 1])
    ends = (-1, -size, -size - 1, size, size + 1, -100, 2**62, -(2**63))
    for positions in (good, *[p for end in ends for p in (torch.tensor([1, end, 0]), good)]):
        got, want = outcome(ours, positions), outcome(eager, positions)
        if isinstance(want, Exception):
            assert isinstance(got, type(want)), (positions, got, want)
        else:
            assert not isinstance(got, Exception), (positions, got)
            torch.testing.assert_close(got, want)


def test_a_row_beyond_the_table_is_an_index_error() -> None:
    module = ORTModule(nn.Embedding(6, 4))
    for row in (-1, 6):
        with pytest.raises(IndexError, match="index out of range in self"):  # as PyTorch says it
            module(torch.tensor([0, row]))
