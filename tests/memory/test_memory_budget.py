"""Recomputation in backward: less is kept, and every number stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ortmodule import InvalidArgumentError, Options, ORTModule

BUDGETS = ["all", None, 0.5, 0.2, 4096]


class Picture(nn.Module):
    """Convolutions with BatchNorm and ReLU: statistics must be taken, and moved, once."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        channels = (3, *[8] * layers)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            for a, b in zip(channels, channels[1:], strict=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Text(nn.Module):
    """Pre-norm layers with dropout, a gate, and an output beside the loss."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.gate = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for norm, up, gate, down in zip(self.norms, self.up, self.gate, self.down, strict=True):
            h = norm(x)
            h = nn.functional.silu(gate(h)) * up(h)
            x = x + nn.functional.dropout(down(h), 0.25, self.training)
        return x.square().mean(), x


def compare(module: nn.Module, x: torch.Tensor, options: Options, steps: int = 3) -> ORTModule:
    """Steps of the wrapped module beside eager's; losses, gradients and buffers must be equal."""
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=options)
    for step in range(steps):
        results = []
        for run in (eager, model):
            run.zero_grad()
            torch.manual_seed(step)
            out = run(x)
            loss = out[0] if isinstance(out, tuple) else out
            loss.backward()
            results.append(loss.detach())
        torch.testing.assert_close(results[1], results[0])
        for p, q in zip(eager.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6)
        for p, q in zip(eager.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(q, p)
    return model


@pytest.mark.parametrize("budget", BUDGETS)
def test_batch_statistics_move_once(budget: float | str | None) -> None:
    torch.manual_seed(0)
    compare(Picture(), torch.randn(4, 3, 9, 9), Options(memory_budget=budget))


@pytest.mark.parametrize("budget", BUDGETS)
def test_masks_that_eager_draws_stay_the_same(budget: float | str | None) -> None:
    torch.manual_seed(0)
    compare(Text(), torch.randn(6, 16), Options(memory_budget=budget, dropout="torch"))


def test_fast_dropout_gives_the_same_gradients_under_every_budget() -> None:
    torch.manual_seed(0)
    module, x = Text(), torch.randn(6, 16)
    gradients = []
    for budget in BUDGETS:
        model = ORTModule(copy.deepcopy(module), options=Options(memory_budget=budget))
        torch.manual_seed(3)
        model(x)[0].backward()
        gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        for p, q in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-7)


def test_less_is_kept_and_the_peak_falls() -> None:
    torch.manual_seed(0)
    kept, peaks = [], []
    for budget in ("all", None, 0.5, 0.3):
        model = ORTModule(Picture(8), options=Options(memory_budget=budget))
        model(torch.randn(32, 3, 32, 32)).backward()
        session = model.report().sessions[0]
        kept.append(session.saved_bytes)
        peaks.append(session.peak_bytes)
        assert (session.recomputed_nodes > 0) == (budget != "all")
    assert kept == sorted(kept, reverse=True) and kept[2] <= 0.55 * kept[0]
    assert peaks[1] < peaks[0]


def test_new_sizes_second_backward_and_frozen_layers() -> None:
    torch.manual_seed(0)
    module = Text()
    module.up[0].requires_grad_(False)
    model = ORTModule(copy.deepcopy(module).eval(), options=Options(memory_budget=0.3))
    module.eval()
    for rows in (5, 9, 3):
        x = torch.randn(rows, 16)
        for run in (module, model):
            run.zero_grad()
            loss, _ = run(x)
            loss.backward(retain_graph=True)
            loss.backward()
        for p, q in zip(module.parameters(), model.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6)


def test_an_input_of_the_callers_may_change_before_backward() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model, x = ORTModule(module, options=Options(memory_budget=0.1)), torch.randn(64, 16)
    loss = model(x).sum()
    x.zero_()  # eager keeps the dropped-out copy, not x
    loss.backward()


@pytest.mark.parametrize("budget", [0, -1, "half", True, float("nan"), float("inf")])
def test_a_wrong_budget_is_refused(budget: object) -> None:
    with pytest.raises(InvalidArgumentError, match="memory_budget"):
        Options(memory_budget=budget)
