"""Tensors that a forward writes out, `torch.tensor([1.0, 2.0])`: read, written, viewed, given away."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients

Body = Callable[[Any, torch.Tensor], Any]


def read(model: Any, x: torch.Tensor) -> Any:
    return model.linear(x)[:, torch.tensor([0, 1, 2, 1])] * torch.tensor([[1.0, 2.0], [3.0, 4.0]]).flatten()


def an_entry_written(model: Any, x: torch.Tensor) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    t[0] = x[0, 0].detach()
    return model.linear(x) * t


def written(model: Any, x: torch.Tensor) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    t.mul_(2)
    before = t.clone()
    t.add_(model.linear(x).sum())
    return model.linear(x) * t + before


def a_view_written(model: Any, x: torch.Tensor) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    t[1:3].mul_(x.sum())
    return model.linear(x) * t


def given_back(model: Any, x: torch.Tensor) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return model.linear(x) * t, t, t[1:]


def left_on_the_module(model: Any, x: torch.Tensor) -> Any:
    model.left = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return model.linear(x) * model.left


def chosen(model: Any, x: torch.Tensor) -> Any:
    t = torch.as_tensor([1.0, 2.0, 3.0, 4.0]).to(x)
    t += x.mean()
    return torch.where(torch.tensor([True, False, True, False]), model.linear(x), t)


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(4, 4), body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


@pytest.mark.parametrize(
    "body", [read, an_entry_written, written, a_view_written, given_back, left_on_the_module, chosen]
)
def test_as_in_eager(body: Body) -> None:
    eager = Model(body)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for rows in (2, 3, 4):
        x = torch.randn(rows, 4)
        results = []
        for module in (model, eager):
            module.zero_grad()
            given = module(x)
            results.append(given if isinstance(given, tuple) else (given,))
            results[-1][0].square().sum().backward()
        torch.testing.assert_close(*results)
        assert_same_gradients(model, eager)


def test_one_that_is_read_is_traced_once() -> None:
    model = ORTModule(Model(read))
    model(torch.randn(2, 4))
    assert "functionalize" not in str(model.report())
