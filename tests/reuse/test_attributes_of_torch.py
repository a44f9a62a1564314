"""What torch's own layers keep for themselves stays with them when the forward changes something on its modules."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule

X = torch.randn(3, 4)
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, torch.Tensor], torch.Tensor]]] = {
    "ParameterDict": (
        lambda: nn.ParameterDict({"a": torch.full((4,), 2.0), "b": torch.full((4,), 3.0)}),
        lambda layer, x: sum((x * layer[name] for name in layer), x),
    ),
    "ParameterList": (
        lambda: nn.ParameterList([torch.full((4,), 2.0), torch.full((4,), 3.0)]),
        lambda layer, x: sum((x * weight for weight in layer), x),
    ),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), lambda layer, x: layer(x, x, x)[0]),
    "LSTM": (lambda: nn.LSTM(4, 4), lambda layer, x: layer(x)[0]),
    "ModuleDict": (lambda: nn.ModuleDict({"a": nn.Linear(4, 4)}), lambda layer, x: sum(m(x) for m in layer.values())),
}


class ChangesMode(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        make, self.use = LAYERS[name]
        self.layer = make()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.use(self.layer, x)
        self.train(not self.training)
        return y


@pytest.mark.parametrize("name", LAYERS)
def test_attributes_of_layers_stay(name: str) -> None:
    module = ChangesMode(name)
    eager, kept = copy.deepcopy(module), set(vars(module.layer))
    model = ORTModule(module)
    for _ in range(4):
        torch.testing.assert_close(model(X), eager(X))
        assert kept <= set(vars(module.layer))
        assert module.layer.training is eager.layer.training
