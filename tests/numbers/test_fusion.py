"""Fusion: clusters become one kernel, and nothing that a caller can see changes but the last bits and the time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from ortmodule import InvalidArgumentError, Options, ORTModule
from tests import zoo
from tests.support import pair


class Residual(nn.Module):
    """Dropout, a scaled residual sum and normalization."""

    def __init__(self, width: int = 48, p: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x + 0.5 * self.drop(self.down(F.gelu(self.up(x)))))
        return self.norm(y + 0.5 * self.drop(self.down(F.silu(self.up(y)))))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(width)), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.out(self.weight * y.to(x.dtype))


class Rotary(nn.Module):
    """Views, halves and a table that broadcasts over the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.proj(x).view(*x.shape[:2], 4, 8).transpose(1, 2)
        angles = torch.arange(x.size(1), device=x.device).float()[:, None] * torch.linspace(1, 0.1, 8)
        left, right = q.chunk(2, -1)
        q = q * angles.cos() + torch.cat((-right, left), -1) * angles.sin()
        return q.transpose(1, 2).reshape(x.shape)


class Pointwise(nn.Module):
    """Conditions, bounds, broadcasts of a row and of a column, and values that are read again later."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.gate = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(6, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.where(x > 0.2, torch.tanh(x) * self.scale, torch.sigmoid(x) - self.gate)
        b = torch.exp(-a.abs()).clamp(0.1, 0.9) / (1 + a * a).sqrt()
        return b, torch.relu(a) + torch.erf(b) ** 3


def train(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = model(x)
    outs = list(out) if isinstance(out, tuple) else [out]
    sum((y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() for y in outs).backward()
    assert x.grad is not None
    return [*(y.detach().clone() for y in outs), x.grad, *(p.grad.clone() for p in model.parameters())]


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (3, 7, 48)),
    "rms": (RootMeanSquare, (2, 5, 40)),
    "rotary": (Rotary, (2, 9, 32)),
    "pointwise": (Pointwise, (5, 6, 24)),
}


@pytest.mark.parametrize("name", MODULES)
def test_fused_and_separate_kernels_agree_with_eager(name: str) -> None:
    make, shape = MODULES[name]
    eager = make()
    fused = ORTModule(copy.deepcopy(eager))
    separate = ORTModule(copy.deepcopy(eager), options=Options(fusion=False))
    # Another size of every axis that may change runs on the same graph.
    for batch in (shape[0], shape[0] + 2, 1):
        x = torch.randn(batch, *shape[1:])
        want = train(eager, x)
        for model in (fused, separate):
            for got, expected in zip(train(model, x), want, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    sessions = fused.report().sessions
    assert all(s.fused_kernels > 0 and s.fused_nodes >= 2 * s.fused_kernels for s in sessions)
    assert all(s.fused_kernels == 0 for s in separate.report().sessions)
    assert "fusion" in sessions[0].seconds


def test_clusters_go_through_what_stops_or_routes_gradients() -> None:
    """Once the gradient is built that is no operator any more; nor do signs and softplus stand between the kernels."""

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        huber = F.huber_loss(x, y, reduction="none") + F.smooth_l1_loss(x, y, reduction="none", beta=0.3)
        return huber + F.binary_cross_entropy_with_logits(x, y, reduction="none") + (x.detach() - y).abs()

    class Losses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return losses(x, x.new_full((), 0.25).expand_as(x))

    model = ORTModule(Losses())
    x = torch.tensor([0.25, 0.0, -0.0, 1e-7, -1e-7, 3.0, -3.0, 17.0, -17.0, 100.0, -100.0, float("nan")]).reshape(3, 4)
    for given in (x, x[1:], x[:0]):
        for got, expected in zip(train(model, given), train(model.module, given), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-6, atol=1e-7)
    plan = model._manager.transitions()[0].session.plan_text()
    assert not any(op in plan for op in ("Softplus", "Sign", "StopGradient", "WithValue", "Where")), plan


@pytest.mark.parametrize("name", ["residual", "rms"])
def test_autocast_stays_as_near_to_eager_as_without(name: str) -> None:
    make, shape = MODULES[name]
    eager, x = make(), torch.randn(shape)
    exact = train(eager, x)
    with torch.autocast("cpu", torch.bfloat16):
        want, got = train(eager, x), train(ORTModule(copy.deepcopy(eager)), x)
    for g, w, e in zip(got, want, exact, strict=True):
        bound = 2 * (w - e).abs().max() + 0.02 * e.abs().max()
        assert (g - e).abs().max() <= bound, "further from the exact numbers than eager under autocast"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_the_forward_rounds_is_rounded_in_a_cluster_too(dtype: torch.dtype) -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(40) + 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * self.scale).to(dtype).to(x.dtype)
            return (y - x.type(dtype).float()) * 0.5

    model, eager = pair(Rounded())
    x = torch.randn(64, 40)
    torch.testing.assert_close(model(x), eager(x), rtol=0, atol=0)


def test_masks_are_those_of_the_separate_kernel_and_runs_repeat() -> None:
    module, x = Residual(p=0.3), torch.randn(4, 33, 48)
    results = []
    for fusion in (True, True, False):
        model = ORTModule(copy.deepcopy(module), options=Options(fusion=fusion))
        torch.manual_seed(5)
        results.append([train(model, x) for _ in range(2)])
        assert (model.report().sessions[0].fused_kernels > 0) == fusion
    for first, second, separate in zip(*results, strict=True):
        for a, b, c in zip(first, second, separate, strict=True):
            assert torch.equal(a, b), "two runs with one seed differ"
            torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4)  # another mask would be far off


def test_training_and_evaluation_of_a_model() -> None:
    built = zoo.build("bert", dropout=0.0)
    model, eager = pair(built.module)
    for _ in range(2):
        got, want = model(**built.inputs), eager(**built.inputs)
        torch.testing.assert_close(got.loss, want.loss, rtol=1e-5, atol=1e-6)
        got.loss.backward()
        want.loss.backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    model.eval(), eager.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**built.inputs).loss, eager(**built.inputs).loss, rtol=1e-5, atol=1e-6)


def test_an_output_that_is_not_used_asks_for_no_gradient() -> None:
    """The backward that is compiled for one of two outputs is fused as well."""
    eager = Pointwise()
    model, x = ORTModule(copy.deepcopy(eager)), torch.randn(5, 6, 24)
    for side in (0, 1):
        for m in (model, eager):
            m.zero_grad()
            m(x)[side].square().sum().backward()
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-5)


def test_memory_does_not_grow() -> None:
    module, x = Residual(64), torch.randn(32, 64, 64)
    peaks = {}
    for fusion in (True, False):
        model = ORTModule(copy.deepcopy(module), options=Options(fusion=fusion))
        train(model, x)
        peaks[fusion] = model.report().peak_bytes
    assert peaks[True] <= peaks[False]


class ScaledBranch(nn.Module):
    """What ends a block of a convolutional network: a number per channel, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.gamma) * 0.5 + shortcut


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda t: t,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "batch inside": lambda t: t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "with gaps": lambda t: torch.cat([t, t], 1)[:, :8],
}


@pytest.mark.parametrize("sizes", [(3, 8, 5, 20), (1, 8, 20, 5), (2, 8, 1, 1), (70, 8, 9, 4)], ids=str)
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_results_lie_as_the_inputs_do(first: str, second: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    eager = ScaledBranch()
    model = ORTModule(copy.deepcopy(eager))
    results = []
    for module in (eager, model):
        torch.manual_seed(1)
        x, shortcut = (LAYOUTS[n](torch.randn(sizes)).detach().requires_grad_() for n in (first, second))
        y = module(x, shortcut)
        y.backward(LAYOUTS[first](torch.randn(sizes)))
        results.append((y, x.grad, shortcut.grad, module.gamma.grad))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert sum(s.fused_kernels for s in model.report().sessions) > 0
    if first == second != "with gaps":
        assert results[1][0].stride() == results[0][0].stride()


def test_empty_batches_and_single_rows() -> None:
    eager = Residual()
    model = ORTModule(copy.deepcopy(eager))
    for rows in (4, 0, 1):
        x = torch.randn(rows, 3, 48)
        for got, want in zip(train(model, x), train(eager, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("value", "on"), [("0", False), ("false", False), ("True", True), ("1", True)])
def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, value: str, on: bool) -> None:
    monkeypatch.setenv("ORTMODULE_FUSION", value)
    assert Options(fusion=not on).fusion is on


@pytest.mark.parametrize("value", ["maybe", 2, None])
def test_another_value_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Options\.fusion should be True or False"):
        Options(fusion=value)
