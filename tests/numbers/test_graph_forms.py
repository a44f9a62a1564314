"""Forms of graphs that whole models need and single operators do not show: each trains as in eager, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import Options, ORTModule


class Module(nn.Module):
    """A function of a layer's result and its input."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x), x)


def _running_mean(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(y)
    total.index_add_(0, torch.arange(y.shape[0]), y)
    return total / y.shape[0]


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "the last joined part has no gradient": lambda y, x: torch.cat([y, x, torch.zeros(x.shape[0], 2)], 1).pow(2),
    "only the first joined part has a gradient": lambda y, x: torch.cat([y, x], 1).softmax(1).pow(2),
    "in-place dropout": lambda y, x: F.dropout(y.relu(), 0.0, inplace=True).pow(2),
    "additions by index": _running_mean,
    "a log of a sigmoid": lambda y, x: F.logsigmoid(y) + F.logsigmoid(-y),
    "normalization without statistics": lambda y, x: F.batch_norm(y, None, None, training=True).pow(3),
}


@pytest.mark.parametrize("name", FORMS)
def test_form_trains_as_in_eager(name: str) -> None:
    torch.manual_seed(0)
    module = Module(FORMS[name])
    eager = copy.deepcopy(module)
    model = ORTModule(module, options=Options(fallback="error"))
    for batch in (3, 5, 7):
        x = torch.randn(batch, 4)
        got, expected = model(x), eager(x)
        torch.testing.assert_close(got, expected)
        module.zero_grad()
        eager.zero_grad()
        (got * torch.arange(1.0, got.shape[-1] + 1)).sum().backward()
        (expected * torch.arange(1.0, got.shape[-1] + 1)).sum().backward()
        for p, q in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert model.report().aten_nodes == {}
    assert len(model.report().exports) == 2
