"""What a trace with symbolic sizes keeps of its operators: those that come a second time."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortmodule import ORTModule


class Rows(nn.Module):
    """Each row of a triangle from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.linear(x)
        for i in range(1, 16):
            row = rows[:, :i].sum(-1, keepdim=True) * rows[:, i:]
            rows = torch.cat([rows[:, :i], row], 1)
        return rows


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def kept_and_used(module: nn.Module) -> tuple[int, int]:
    """Results that the second capture, with a symbolic size, keeps, and how often it takes one."""
    model, eager = ORTModule(module), module
    model(torch.ones(3, 16)).sum().backward()
    before = FakeTensorMode.cache_info()
    x = torch.randn(5, 16)
    torch.testing.assert_close(model(x), eager(x))
    after = FakeTensorMode.cache_info()
    return after.misses - before.misses, after.hits - before.hits


def test_rows_of_their_own_sizes_are_not_kept() -> None:
    kept, _ = kept_and_used(Rows())
    assert kept < 60  # of 220


def test_equal_layers_are() -> None:
    kept, used = kept_and_used(Layers())
    assert kept < 12 and used >= 2 * 9
