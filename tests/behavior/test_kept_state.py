"""What a forward keeps or recomputes between calls: norms and masks of weights, attributes, sparse gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from ortmodule import Options, ORTModule
from tests.support import exports

from .table import compare, rand


def two_layers(change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(change(nn.Linear(4, 8)), nn.ReLU(), change(nn.Linear(8, 3)))


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm by hook": weight_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm by hook": spectral_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_weights_recomputed_at_each_call(name: str) -> None:
    """Of spectral_norm that includes the vectors of the power iteration, which are buffers."""
    eager, module = two_layers(CHANGES[name]), two_layers(CHANGES[name])
    model = ORTModule(module, options=Options(fallback="error"))
    for _ in range(3):
        compare(model, eager, (rand(5, 4),), {})
    for m in (model, eager):
        m.eval()
    with torch.no_grad():
        x = rand(5, 4)
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2, model.report()
    assert type(module[0].weight) in (torch.Tensor, nn.Parameter), "no tensor of the trace may stay behind"


def test_a_tensor_kept_in_an_attribute_is_the_last_calls() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.body(x)
            return self.head(self.hidden)

    eager = Net()
    model = ORTModule(copy.deepcopy(eager))
    model(rand(5, 4))
    x = rand(5, 4)
    torch.testing.assert_close(model(x), eager(x))
    torch.testing.assert_close(model.hidden, eager.hidden)
    for module in (model, eager):
        module.hidden.square().sum().backward()
    torch.testing.assert_close(model.body[0].weight.grad, eager.body[0].weight.grad)
    assert model.report().fallback == "none"


def test_a_sparse_gradient_stays_sparse() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    model = ORTModule(copy.deepcopy(eager))
    ids = torch.tensor([1, 7, 7])
    with pytest.warns(UserWarning, match="sparse gradient"):
        model(ids)
    for module in (model, eager):
        module(ids).sum().backward()
    assert model[0].weight.grad.layout == torch.sparse_coo
    torch.testing.assert_close(model[0].weight.grad.to_dense(), eager[0].weight.grad.to_dense())
