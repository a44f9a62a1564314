"""Results that are nothing to compute (copies, constants, views): whoever gets one may write it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from ..scenario import Net, check, state
from ..table import rand

OUTSIDE = torch.linspace(-1, 1, 8)


def new(*values: float) -> torch.Tensor:
    return torch.tensor(values or (1.0, 2.0, 3.0, 4.0))


# What a forward returns beside what it computes of its layers.
RETURNED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "a copy of the input": lambda m, x: x.clone(),
    "a copy of the input's transposition": lambda m, x: x.t().contiguous().t(),
    "two copies": lambda m, x: (x.clone(), x.clone()),
    "a copy and a part of it": lambda m, x: (y := x.clone(), y[1:3]),
    "a copy of a parameter": lambda m, x: m.first.weight.clone(),
    "a detached copy of a parameter": lambda m, x: m.first.weight.detach().clone(),
    "a copy of a buffer": lambda m, x: m.scale.clone(),
    "a copy of a part of a buffer": lambda m, x: m.scale[2:5].clone(),
    "a copy of a copy": lambda m, x: m.scale.clone().clone(),
    "a buffer and nothing": lambda m, x: m.scale + 0,
    "a buffer once": lambda m, x: m.scale * 1,
    "a buffer of its own type": lambda m, x: m.scale.to(torch.float32, copy=True),
    "a buffer repeated once": lambda m, x: m.scale.repeat(1),
    "a buffer joined with nothing": lambda m, x: torch.cat([m.scale]),
    "a buffer without edges": lambda m, x: F.pad(m.scale, (0, 0)),
    "a buffer within wide limits": lambda m, x: m.scale.clamp(-100, 100),
    "a buffer's mean of one": lambda m, x: m.scale[None].mean(0),
    "a buffer's sum of one": lambda m, x: m.scale[None].sum(0),
    "a buffer either way": lambda m, x: torch.where(torch.tensor(True), m.scale, m.scale),
    "a buffer's copy after a write": lambda m, x: (m.calls.add_(1), m.calls.clone())[1],
    "an outside tensor": lambda m, x: OUTSIDE,
    "a part of an outside tensor": lambda m, x: OUTSIDE[2:4],
    "an outside tensor's copy": lambda m, x: OUTSIDE.clone(),
    "an outside tensor and nothing": lambda m, x: OUTSIDE + 0,
    "an outside tensor as it lies": lambda m, x: OUTSIDE.contiguous(),
    "an outside tensor without dropout": lambda m, x: F.dropout(OUTSIDE, 0.0),
    "an outside tensor by a layer": lambda m, x: nn.Identity()(OUTSIDE),
    "a new tensor": lambda m, x: new(),
    "a new number": lambda m, x: torch.tensor(3.0),
    "a new tensor of another type": lambda m, x: new().double(),
    "a new tensor's part": lambda m, x: new()[1:],
    "a new tensor reshaped": lambda m, x: new().reshape(2, 2),
    "a new tensor widened": lambda m, x: new().expand(3, 4).contiguous(),
    "a new tensor and a part of it": lambda m, x: (y := new(), y[:1]),
    "a new tensor computed": lambda m, x: new() + 1,
    "a new tensor's part computed": lambda m, x: (new() + 1)[None],
    "new tensors joined": lambda m, x: torch.stack([new(), new(5, 6, 7, 8)]),
    "a long new tensor": lambda m, x: torch.tensor(list(range(40))),
    "filled": lambda m, x: (torch.ones(3), torch.zeros(1).expand(4).clone(), torch.full((3,), 2.0)),
    "filled as another": lambda m, x: torch.full_like(x, 2.0),
    "filled and transposed": lambda m, x: torch.ones(3, 2).t(),
    "counted": lambda m, x: (torch.arange(5), torch.eye(3)),
    "the sizes": lambda m, x: torch.tensor(x.shape),
    "in containers": lambda m, x: {"one": new(), "more": [torch.tensor(5), m.scale.clone()]},
    "what exp saved": lambda m, x: m.first(x).exp(),
    "a view of what exp saved": lambda m, x: m.first(x).exp().view(-1),
    "a copy of what exp saved": lambda m, x: m.first(x).exp().clone(),
    "what exp saved, and its copy": lambda m, x: (y := m.first(x).exp(), y.clone()),
    "a view of a copy of what exp saved": lambda m, x: m.first(x).exp().clone().view(-1),
}  # fmt: skip


class Returning(Net):
    def __init__(self, returned: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.returned(self, x)


def written(how: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Callable[[Any], Iterator[Any]]:
    """Results are written by whoever gets them; what is there afterwards, and after a backward."""

    def run(m: Any) -> Iterator[Any]:
        for call in range(4):
            x = rand(5, 4).requires_grad_(call % 2 == 0)
            y, beside = m(x)
            results = tree_leaves(beside)
            with torch.no_grad():
                for result in how(results):
                    result.mul_(3).add_(1)
            yield y, results, x, OUTSIDE.clone(), state(m)
            sums = [one.square().sum() for one in (y, *results) if one.requires_grad]
            torch.stack(sums).sum().backward()
            yield state(m), x.grad
            m.zero_grad()

    def run_from_the_same_start(m: Any) -> Iterator[Any]:
        before = OUTSIDE.clone()
        try:
            yield from run(m)
        finally:
            OUTSIDE.copy_(before)

    return run_from_the_same_start


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", ["first", "last", "all"])
@pytest.mark.parametrize("returned", RETURNED)
def test_a_result_in_memory_of_its_own(returned: str, which: str) -> None:
    how = {"first": lambda found: found[:1], "last": lambda found: found[-1:], "all": lambda found: found}[which]
    check(written(how), lambda: Returning(RETURNED[returned]), None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("returned", RETURNED)
def test_a_result_written_without_gradients(returned: str) -> None:
    def run(m: Any) -> Iterator[Any]:
        before = OUTSIDE.clone()
        with torch.no_grad():
            for _ in range(4):
                x = rand(5, 4)
                y, beside = m(x)
                results = tree_leaves(beside)
                for result in (y, *results):
                    result.mul_(3).add_(1)
                yield y, results, x, OUTSIDE.clone(), state(m)
        OUTSIDE.copy_(before)

    check(run, lambda: Returning(RETURNED[returned]), None)
