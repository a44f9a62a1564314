"""Operators at the points where a formula has to be chosen: kinks, ties, zeros, infinities, NaN; in all floating types.

Through the engine beside eager: results and gradients, then at another size on a symbolic graph, and at size 0. Nothing
is left to an ATen node. Not here: ordinary samples of each operator (tests/ops, tests/capture/test_operators.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ortmodule import ORTModule

Function = Callable[..., torch.Tensor]
INF, NAN = float("inf"), float("nan")
KINKS = [-INF, -3.0, -1.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, 25.0, INF, NAN]


class Call(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def train(module: torch.nn.Module, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The result and the inputs' gradients of a weighted sum of it."""
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    result = module(*given)
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    return [result.detach(), *(t.grad for t in given)]


def check(function: Function, *sets: list[torch.Tensor]) -> None:
    """Each set of arguments in turn through one ORTModule."""
    model, eager = ORTModule(Call(function)), Call(function)
    for tensors in sets:
        half = any(t.dtype in (torch.bfloat16, torch.float16) for t in tensors)
        tolerance = dict(rtol=2e-2, atol=2e-2) if half else dict(rtol=1e-5, atol=1e-6)
        for got, expected in zip(train(model, tensors), train(eager, tensors), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    report = model.report()
    assert report.fallback == "none" and not report.aten_nodes, report.aten_nodes


UNARY: dict[str, Function] = {
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "softshrink": F.softshrink,
    "softshrink by a quarter": lambda x: F.softshrink(x, 0.25),
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.5, -2.0),
    "softplus": lambda x: F.softplus(x, 0.5, 1.5),
    "remainder": lambda x: x % 0.5,
    "remainder by a negative number": lambda x: x.remainder(-0.75),
    "fmod": lambda x: x.fmod(0.75),
    "lerp": lambda x: torch.lerp(x, x * x, 0.75),
    "deviation": lambda x: x.reshape(-1, 1).expand(-1, 3).std(1),
    "deviation without correction": lambda x: torch.std_mean(x.unsqueeze(0), 0, correction=0)[0],
    "product": lambda x: torch.stack([x, x + 1]).prod(0),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
    "numbers for special ones": torch.nan_to_num,
    "other numbers for special ones": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "tests": lambda x: x.isnan() + 2 * x.isinf() + 4 * x.isfinite() + 0 * torch.nan_to_num(x),
    "sum of the numbers": lambda x: x.reshape(-1, 1).nansum(1) + x.nansum(),
    "whole part": torch.trunc,
    "fraction": torch.frac,
    "sign": torch.sgn,
    "degrees": torch.deg2rad,
}
BINARY: dict[str, Function] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "lerp": lambda x, y: torch.lerp(x, y, y),
    "absolute error": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth absolute error": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=2.0),
    "divergence": lambda x, y: F.kl_div(x, y, reduction="none"),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.5),
    "greater number": torch.fmax,
    "less number": torch.fmin,
    "whole quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp from below": lambda x, y: x.clamp(min=y),
    "clamp from above": lambda x, y: x.clamp(max=y),
    "clamp": lambda x, y: torch.clamp(x, y, x.new_full((), 0.5)),
    "clamp by bounds that cross": lambda x, y: torch.clamp(x, y, -y),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.5),
}


def row(points: list[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(points, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    points = row(KINKS, dtype)
    check(UNARY[name], [points], [points[2:7]], [points[:0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: torch.dtype) -> None:
    """Every pair of points: the operands broadcast."""
    points = row(KINKS, dtype)
    check(BINARY[name], [points[:, None], points], [points[2:7, None], points[:9]], [points[:4, None], points[:0]])


def test_binary_cross_entropy_of_zero_and_large_logits() -> None:
    logits, targets = (
        row([-90.0, -10.0, -0.0, 0.0, 1e-6, 10.0, 90.0], torch.float32),
        row([0.0, 0.25, 1.0], torch.float32),
    )
    pairs = [t.flatten() for t in torch.meshgrid(logits, targets, indexing="ij")]

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(3.0), reduction="none") + (
            F.binary_cross_entropy_with_logits(x, y)
        )

    check(loss, pairs, [p[:5] for p in pairs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_where_it_is_no_number(weighted: bool, dtype: torch.dtype) -> None:
    """Which infinities and NaN the loss and both gradients have."""
    logits = row([INF, -INF, NAN, 1e37, -1e37, 0.0, 100.0, -100.0], dtype)
    pairs = [t.flatten() for t in torch.meshgrid(logits, row([0.0, 1.0, 0.25], dtype), indexing="ij")]
    weight = row([0.5], dtype) if weighted else None
    loss = lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=weight, reduction="none")  # noqa: E731
    check(loss, pairs, [p[:5] for p in pairs], [p[:0] for p in pairs])


def test_a_confident_prediction_keeps_its_small_loss_and_gradient() -> None:
    x, y = torch.tensor([-15.0, 15.0]), torch.tensor([0.0, 1.0])
    loss = lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none")  # noqa: E731
    got = train(ORTModule(Call(loss)), [x, y])
    exact = torch.log1p(torch.exp(torch.tensor(-15.0, dtype=torch.float64))).float()
    torch.testing.assert_close(got[0], exact.expand(2), rtol=1e-5, atol=0)


def test_cosine_similarity_of_zero_vectors() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1e-9, 0.0], [1.0, 2.0]])
    y = torch.tensor([[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    check(F.cosine_similarity, [x, y], [x[:3], y[:3]], [x[:0], y[:0]])


@pytest.mark.parametrize(
    "how, own",
    [("sum", True), ("sum", False), ("mean", True), ("mean", False), ("amax", True), ("amin", True)],
)
def test_scatter_with_ties(how: str, own: bool) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 0.0], [0.0, -1.0, 2.0, 2.0]])
    index = torch.tensor([[0, 0, 1, 1], [3, 3, 3, 0]])
    values = torch.tensor([[1.0, 1.0, 5.0, 5.0], [2.0, 2.0, 1.0, 0.0]])
    scatter = lambda x, i, v: x.scatter_reduce(1, i, v, how, include_self=own)  # noqa: E731
    check(scatter, [x, index, values], [x[:1], index[:1], values[:1]], [x[:0], index[:0], values[:0]])
