"""Layers and functions that write into what they are given: values, and which gradients there are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import Options, ORTModule

Function = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS = (
    "relu relu_ relu6 elu elu_ selu selu_ celu celu_ leaky_relu leaky_relu_ hardtanh hardtanh_ hardswish hardsigmoid "
    "silu mish sigmoid_ tanh_ square_ exp_ abs_ neg_ sin_"
).split()
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
SHAPES = {F.dropout1d: (2, 3, 4), F.dropout2d: (2, 3, 4, 4), F.dropout3d: (2, 3, 2, 2, 4)}


def activation(name: str) -> Function:
    found = getattr(F, name, None)
    if found is None or name.endswith("_"):
        return lambda y: (found or getattr(torch.Tensor, name))(y)
    return lambda y: found(y, inplace=True)


class Net(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x)) * 2


def compare(function: Function, shape: tuple[int, ...]) -> None:
    eager = Net(function)
    model = ORTModule(copy.deepcopy(eager), options=Options(dropout="torch"))
    x = torch.randn(shape)
    for _ in range(2):
        results = []
        for one in (eager, model):
            one.zero_grad()
            torch.manual_seed(0)
            results.append(one(x))
            results[-1].square().sum().backward()
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
        for p, q in zip(eager.parameters(), model.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    compare(activation(name), (2, 3, 4))


@pytest.mark.parametrize(("ratio", "training"), [(0.0, True), (1.0, True), (0.4, True), (0.4, False)])
@pytest.mark.parametrize("dropout", DROPOUTS, ids=lambda function: function.__name__)
def test_dropouts(dropout: Callable[..., torch.Tensor], ratio: float, training: bool) -> None:
    compare(lambda y: dropout(y, ratio, training, inplace=True), SHAPES.get(dropout, (2, 3, 4)))
