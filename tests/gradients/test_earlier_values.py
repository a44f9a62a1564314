"""Weights that are written between forward and backward: eager's gradients see what was written where a formula reads a
weight, and what was before in all that eager has kept. Backward here computes much of that again. Not here: graphs that
no longer hold for later calls (tests/reuse).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import ortmodule

WIDTH = 16


class Formula(nn.Module):
    """`formula` of what is given and of a square weight."""

    def __init__(self, formula: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH) + 0.5)
        self.formula = formula

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.formula(x, self.weight)


class Added(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(x, x, x)[0]
        return attended


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, WIDTH), nn.Embedding(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.tokens((x[..., 0] * 3).long().clamp(0, 10)) + self.positions.weight[: x.shape[1]]


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), torch.arange(x.shape[0] * x.shape[1]) % 50)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "layer norm": lambda: [linear(), nn.LayerNorm(WIDTH), linear()],
    "layer norm and an activation": lambda: [linear(), nn.LayerNorm(WIDTH), nn.ReLU(), linear()],
    "rms norm": lambda: [linear(), nn.RMSNorm(WIDTH), linear()],
    "group norm": lambda: [nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv1d(6, 6, 3, padding=1)],
    "batch norm": lambda: [nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6)],
    "activations": lambda: [linear(), nn.GELU(), linear(), nn.SiLU(), linear(), nn.ReLU(), linear()],
    "prelu": lambda: [linear(), nn.PReLU(), linear()],
    "a factor": lambda: [linear(), Formula(lambda x, w: x * w[0]), nn.ReLU(), linear()],
    "a shift": lambda: [linear(), Formula(lambda x, w: (x + w[0]).relu()), linear()],
    "a shift and dropout": lambda: [linear(), Formula(lambda x, w: x + w[0]), nn.Dropout(0.3), linear()],
    "a number": lambda: [linear(), Formula(lambda x, w: (x * w[0, 0]).softmax(-1)), linear()],
    "views": lambda: [linear(), Formula(lambda x, w: x * w[1] * w.t()[2] * w[2:3].expand(6, -1)), linear()],
    "parts": lambda: [linear(), Formula(lambda x, w: x * w.chunk(2)[1][0] * w.unbind()[2]), linear()],
    "copies": lambda: [linear(), Formula(lambda x, w: x * w[1].flip(0) * w[[0, 2]].sum(0)), linear()],
    "an encoder": lambda: [nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), linear()],
    "a block": lambda: [Added(nn.LayerNorm(WIDTH), Attends()), Added(nn.LayerNorm(WIDTH), linear(), nn.GELU())],
    "embeddings": lambda: [Embeds(), nn.LayerNorm(WIDTH), linear()],
    "a loss": lambda: [linear(), nn.LayerNorm(WIDTH), Labelled()],
    "a recurrent layer": lambda: [linear(), nn.LayerNorm(WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)],
}


def gradients(
    model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], sizes: list[int], written: str
) -> list[torch.Tensor]:
    """Of a last step, in whose middle the parameters that have `written` in their names are written unseen."""
    for step, size in enumerate(sizes):
        torch.manual_seed(step)
        y = call(torch.randn(size, 6, WIDTH))
        y = y[0] if isinstance(y, tuple) else y
        model.zero_grad()
        if step == len(sizes) - 1:
            for name, p in model.named_parameters():
                if name.startswith(written):
                    p.data.mul_(1.5)
        (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("sizes", [[3, 3, 3], [3, 5, 3, 4]], ids=["one size", "sizes"])
@pytest.mark.parametrize("name", LAYERS)
def test_weights_written_unseen(name: str, sizes: list[int]) -> None:
    torch.manual_seed(0)
    made = nn.Sequential(*LAYERS[name]())
    for written in ["", *(f"{i}." for i in range(len(made)) if list(made[i].parameters()))]:
        theirs, ours = copy.deepcopy(made), copy.deepcopy(made)
        wrapped = ortmodule.ORTModule(ours, options=ortmodule.Options(dropout="torch"))
        want, got = gradients(theirs, theirs, sizes, written), gradients(ours, wrapped, sizes, written)
        assert wrapped.report().fallback == "none", wrapped.report().fallback_reason
        for (parameter, _), p, q in zip(made.named_parameters(), want, got, strict=True):
            torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-4, msg=lambda m, at=(written, parameter): f"{at}: {m}")


@pytest.mark.parametrize("sizes", [[3, 3, 3], [3, 5, 3, 4]], ids=["one size", "sizes"])
def test_what_eager_lets_be_written_may_be_written(sizes: list[int]) -> None:
    """A bias of which eager keeps nothing, though backward here computes again what it was added to."""
    torch.manual_seed(0)
    made = nn.Sequential(linear(), Formula(lambda x, w: (x + w[0]).relu()), linear())
    found = []
    for wrap in (lambda m: m, ortmodule.ORTModule):
        module = copy.deepcopy(made)
        call = wrap(module)
        for step, size in enumerate(sizes):
            torch.manual_seed(step)
            y = call(torch.randn(size, 6, WIDTH))
            with torch.no_grad():
                module[1].weight.add_(1.0)
            y.square().sum().backward()
        found.append([p.grad for p in module.parameters()])
    for p, q in zip(*found, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-3)
