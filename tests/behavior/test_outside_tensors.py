"""A forward that gives a tensor outside of the module other memory, values, a gradient or a wish for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from .scenario import Net, check, state
from .table import rand

CHANGES: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], Any]] = {
    "data of a new tensor": lambda x, t, other: setattr(t, "data", torch.tensor(7.0)),
    "data of another": lambda x, t, other: setattr(t, "data", other),
    "data of another's data": lambda x, t, other: setattr(t, "data", other.data),
    "data of a result": lambda x, t, other: setattr(t, "data", x.sum().detach()),
    "memory of a new tensor": lambda x, t, other: t.set_(torch.tensor(7.0)),
    "memory of another": lambda x, t, other: t.set_(other),
    "values": lambda x, t, other: t.copy_(torch.tensor(7.0)),
    "all of it": lambda x, t, other: torch.utils.swap_tensors(t, torch.tensor(7.0)),
    "its size": lambda x, t, other: t.resize_(1),
    "a gradient": lambda x, t, other: setattr(t, "grad", torch.tensor(3.0)),
    "a result as its gradient": lambda x, t, other: setattr(t, "grad", x.sum().detach()),
    "whether it wants a gradient": lambda x, t, other: t.requires_grad_(),
}


class Changing(Net):
    def __init__(self, change: Callable[..., Any], late: bool, as_buffer: bool) -> None:
        super().__init__()
        self.change, self.late = change, late
        kind: Any = nn.Buffer if as_buffer else lambda tensor: tensor
        self.given, self.other = kind(torch.tensor(2.0)), kind(torch.tensor(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.late:
            self.change(x, self.given, self.other)
        y = super().forward(x) * self.given
        if self.late:
            self.change(x, self.given, self.other)
        return y


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("as_buffer", [False, True], ids=["attribute", "buffer"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_the_forward_changes(change: str, late: bool, as_buffer: bool) -> None:
    def run(m: Any) -> Iterator[Any]:
        for _ in range(4):
            with torch.no_grad():
                y = m(rand(5, 4))
            given = m.given
            grad = None if given.grad is None else given.grad.clone()
            yield y, given.detach().clone(), m.other.clone(), given.requires_grad, grad, state(m)

    check(run, lambda: Changing(CHANGES[change], late, as_buffer), None)


class Scaled(nn.Module):
    """It multiplies by a small tensor that is no module's."""

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.linear, self.given = nn.Linear(4, 4), [given]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.given[0]


class InParts(nn.Module):
    """Its parts are graphs, and it is none."""

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self.scaled = Scaled(given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with open(os.devnull):
            return self.scaled(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Scaled, InParts], ids=["whole", "parts"])
@pytest.mark.parametrize("trained", [False, True], ids=["values", "parameter"])
def test_a_small_tensor_of_the_program_is_no_number_of_a_graph(make: Any, trained: bool) -> None:
    def run(m: Any) -> Iterator[Any]:
        given = (m if make is Scaled else m.scaled).given[0]
        for i in range(4):
            with torch.no_grad():
                given.fill_(float(i + 1))
            given.grad = None
            y = m(rand(5, 4))
            y.sum().backward()
            yield y, None if given.grad is None else given.grad.clone()

    def build() -> nn.Module:
        return make(nn.Parameter(torch.ones(4)) if trained else torch.ones(4))

    check(run, build, None)
