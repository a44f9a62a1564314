"""`torch.vmap` inside a forward, and the tensors that a function under it looks things up in."""

from __future__ import annotations

import copy

import torch
import torch.nn as nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: self.layer(row).softmax(-1))(x).square().sum()


class Masked(nn.Module):
    """A mask from a function of positions, as transformers' masks with a function of the caller's are made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.rand(9))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        def weight(b: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return self.weight[ids[b, i]] * (i > 0)

        batch, length = ids.shape
        with TransformGetItemToIndex():
            over_positions = torch.vmap(weight, (None, 0))
            mask = torch.vmap(over_positions, (0, None))(torch.arange(batch), torch.arange(length))
        return (self.layer(x) * mask[..., None]).square().sum()


def check(eager: nn.Module) -> None:
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for batch, length in ((3, 6), (4, 5), (2, 7)):
        x, ids = torch.randn(batch, length, 4), torch.randint(0, 9, (batch, length))
        losses = []
        for one in (eager, model):
            one.zero_grad()
            losses.append(one(x, ids))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0])
        assert_same_gradients(model, eager)
    assert len(model.report().exports) == 2


def test_a_function_of_one_sample_over_a_batch() -> None:
    check(PerSample())


def test_a_function_of_positions_that_looks_into_tensors() -> None:
    check(Masked())
