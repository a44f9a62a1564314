"""Functions of torch.jit.script inside of a forward: values and gradients, however often they ran before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule


@torch.jit.script
def scaled(x: torch.Tensor, factor: float = 2.0, more: bool = True) -> torch.Tensor:
    if more and x.size(0) > 1:
        return x * factor + 1
    return x - factor


@torch.jit.script
def of_parts(x: torch.Tensor, count: int, weight: torch.Tensor | None = None) -> torch.Tensor:
    parts = x.chunk(count, -1)
    made = [torch.tanh(parts[0])]
    for part in parts[1:]:
        made.append(torch.sigmoid(part))
    y = torch.cat(made, -1)
    if weight is not None:
        y = y * weight
    return y


@torch.jit.script
def around(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(scaled(x, 3.0))


@torch.jit.script
def by_layout(x: torch.Tensor) -> torch.Tensor:
    if x.is_contiguous():
        return x * 2
    return x * 3


@torch.jit.script
def by_gradient(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        return x * 2
    return x * 3


class Net(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], *given: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function, self.given = function, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x), *self.given)


def steps(module: nn.Module, count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    seen = []
    for _ in range(count):
        module.zero_grad()
        y = module(torch.randn(3, 4))
        y.square().sum().backward()
        seen += [y.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return seen


FUNCTIONS = {
    "defaults": (scaled,),
    "numbers": (scaled, 0.5, False),
    "lists of tensors": (of_parts, 2),
    "one that calls another": (around,),
    "by name": (lambda x: scaled(x, more=False),),
}


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_script_computes_is_captured_with_its_gradients(name: str, before: int) -> None:
    """TorchScript differentiates a function itself once it has seen some calls of it."""
    eager = Net(*FUNCTIONS[name])
    if before:
        steps(eager, before)
    model = ORTModule(eager)
    got = steps(model)
    assert model.report().fallback == "none"
    torch.testing.assert_close(got, steps(eager))


def test_a_number_that_changes_is_another_graph_with_its_gradients() -> None:
    eager = Net(scaled, 2.0)
    model = ORTModule(eager)
    for factor in (2.0, 4.0, 5.0, 2.0):
        eager.given = (factor,)
        torch.testing.assert_close(steps(model), steps(eager))


@pytest.mark.parametrize("function", [by_layout, by_gradient])
def test_what_a_script_asks_and_nobody_hears_runs_in_pytorch(function: Callable[..., torch.Tensor]) -> None:
    eager = Net(function)
    model = ORTModule(eager)
    with pytest.warns(UserWarning, match="a function of torch.jit.script"):
        got = steps(model)
    torch.testing.assert_close(got, steps(eager))


def test_what_a_script_is_not_given_is_its_own_error() -> None:
    model = ORTModule(Net(lambda x: scaled()))  # type: ignore[call-arg]
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="missing value for argument 'x'"):
        warnings.simplefilter("ignore")
        model(torch.randn(3, 4))
