"""Modules that the tests of this folder train, and PyTorch's own loop beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ortmodule import TrainingSession, export_training_artifacts

OptimizerOf = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, torch.Tensor]


def mlp(seed: int = 0) -> nn.Module:
    """[batch, 8] -> [batch, 4]."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer as well; int64[batch, n] -> [batch, 11, n]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens)) * self.scale).transpose(1, 2)


def batches(count: int, size: int = 12) -> list[Batch]:
    """Images and labels."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 8, generator=generator), torch.randint(4, (size,), generator=generator))
        for _ in range(count)
    ]


def pairs(count: int, size: int = 12) -> list[Batch]:
    """Images and what they should become. Of the mean square the engine has eager's bits; of cross entropy it sums in
    an order of its own."""
    return [(x, torch.nn.functional.one_hot(y, 4).float()) for x, y in batches(count, size)]


def loss_for(batch: Batch) -> nn.Module:
    return nn.MSELoss() if batch[1].is_floating_point() else nn.CrossEntropyLoss()


def session_for(
    module: nn.Module, optimizer_of: OptimizerOf, example: Batch, folder: Path, **options
) -> TrainingSession:
    """On artifacts of a copy of the module."""
    copied = copy.deepcopy(module)
    export_training_artifacts(copied, loss_for(example), optimizer_of(copied.parameters()), example, folder)
    return TrainingSession(folder, **options)


def train(session: TrainingSession, data: Sequence[Batch]) -> list[float]:
    losses = []
    for batch in data:
        losses.append(session.train_step(*batch).item())
        session.optimizer_step()
        session.zero_grad()
    return losses


def train_eagerly(module: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Batch]) -> list[float]:
    losses = []
    for x, y in data:
        loss = loss_for((x, y))(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def difference(session: TrainingSession, module: nn.Module) -> float:
    """The largest of any element of the module's state_dict."""
    mine = session.state_dict()
    theirs = module.state_dict()
    assert mine.keys() == theirs.keys()
    return max((mine[n].double() - theirs[n].double()).abs().max().item() for n in mine)


def same_files(a: Path, b: Path) -> bool:
    return np.array_equal(np.fromfile(a, np.uint8), np.fromfile(b, np.uint8))
