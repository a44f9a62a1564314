"""A call that is like the last one is recognized natively; whatever changed in between is seen, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from tests.support import Lambda, pair


def scaled(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * sum(m.factors) + m.shift


def make() -> Lambda:
    module = Lambda(scaled)
    module.factors = [1.0, 2.0]
    module.shift = 0.5
    return module


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a list in place": lambda m: m.factors.append(3.0),
    "a list by an equal one, then in place": lambda m: (setattr(m, "factors", [1.0, 2.0]), m.factors.append(1.0)),
    "a number": lambda m: setattr(m, "shift", 1.5),
    "a parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "a parameter's data": lambda m: setattr(m.linear.weight, "data", torch.ones(4, 4)),
    "requires_grad": lambda m: m.linear.weight.requires_grad_(False),
    "a sub-module": lambda m: setattr(m, "linear", nn.Linear(4, 4, bias=False).requires_grad_()),
    "dtype": lambda m: m.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_calls_is_seen(name: str) -> None:
    model, eager = pair(make())
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    for m in (model.module, eager):
        torch.manual_seed(3)
        CHANGES[name](m)
    x = x.to(eager.linear.weight.dtype)
    for _ in range(2):
        torch.testing.assert_close(model(x), eager(x))
