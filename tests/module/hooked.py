"""A module with hooks, wrapped and in eager: each with handles and a state of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn

from tests.support import assert_same_gradients, pair

__all__ = ["Block", "Blocks", "Hang", "Hooked", "add", "blocks", "compare"]

Hang = Callable[[nn.Module, dict[str, Any]], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.scale = nn.Linear(4, 4), nn.LayerNorm(4), 1.5

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return torch.tanh(self.norm(self.linear(x))) + shift

    def hook(self, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * self.scale


class Blocks(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](self[1](self[0](x), shift=0.25))


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return Blocks(Block(), Block(), Block())


def compare(model: nn.Module, eager: nn.Module) -> None:
    x = torch.randn(3, 4)
    got, want = model(x), eager(x)
    torch.testing.assert_close(got, want)
    for module, out in ((model, got), (eager, want)):
        module.zero_grad()
        out.square().sum().backward()
    assert_same_gradients(model, eager, rtol=1e-3, atol=1e-4)


class Hooked:
    """A wrapped module and the same in eager, each with hooks and a state of its own (`seen`, `box`)."""

    def __init__(self, module: nn.Module | None = None, **options: Any) -> None:
        self.model, self.eager = pair(module or blocks(), fallback="eager", **options)
        self.states: list[dict[str, Any]] = [{"seen": [], "box": {}, "k": 2.0} for _ in range(2)]
        self.handles: list[list[Any]] = [[], []]

    def hang(self, hang: Hang) -> None:
        for module, state, handles in zip((self.model.module, self.eager), self.states, self.handles):
            handles.append(hang(module, state))

    def remove(self, which: int = -1) -> None:
        for handles in self.handles:
            handles.pop(which).remove()

    def set(self, name: str, value: Any) -> None:
        for state in self.states:
            state[name] = value

    def compare(self, times: int = 1) -> None:
        for _ in range(times):
            compare(self.model, self.eager)
            self.compare_states()

    def compare_states(self) -> None:
        ours, theirs = self.states
        for name in ("seen", "box"):
            torch.testing.assert_close(ours[name], theirs[name])
        for value in (*ours["seen"], *ours["box"].values()):
            assert not isinstance(value, torch.Tensor) or type(value) is torch.Tensor

    @property
    def fallback(self) -> str:
        return self.model.report().fallback


def add(number: float, module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out + number
