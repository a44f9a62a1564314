"""Branches on numbers and sizes that come from the inputs: `if lengths.max().item() > 2:`, `for row in found:`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients


class Model(nn.Module):
    """A layer behind what `body` makes of the inputs."""

    def __init__(self, body: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.body = nn.Linear(4, 4), body

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.body(x, ids)).square().mean()


def a_floating_number(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x


def a_length(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    n = ids.max().item()
    return x[:, :n] * 2 if n > 1 else x


def no_row_found(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    found = (ids > 1).nonzero()
    return x if found.shape[0] == 0 else x[found[:, 0]]


def no_row_found_by_where(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    rows = torch.where(ids > 1)[0]
    return x[rows] if len(rows) > 0 else x * x.sum()


def a_loop(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    for i in range(ids.max().item()):
        x = x + i + 1
    return x


def a_loop_over_what_is_found(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    for row, column in (ids[:1, :2] > 1).nonzero():
        x = x + row - column * x[row, column]
    return x


def a_list(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    first, second, *_ = (ids[:, 0] > 1).long().tolist()
    return x * 2 if first > second else x * (second + 3)


def compared_with_a_size(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x[1:] * 2 if int(ids.sum()) > 3 * x.shape[0] else x


def with_a_write(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    n = int((ids > 0).sum(1).min())
    y = x.clone()
    if n < 2:
        y[:, 1:] = 0
    return y


def an_element(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x[0] if ids[0, 0] == ids[1, 0] else x[ids[0, 0]]


BODIES = (
    a_floating_number, a_length, no_row_found, no_row_found_by_where, a_loop, a_loop_over_what_is_found, a_list,
    compared_with_a_size, with_a_write, an_element,
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_a_graph_for_each_way(body: Callable[..., torch.Tensor]) -> None:
    eager = Model(body)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    random = torch.Generator().manual_seed(3)
    for step in range(7):
        size = (3, 4, 5)[step % 3]
        x = torch.randn(size, 4, 4, generator=random)
        ids = torch.randint(0, 3 if step % 2 else 2, (size, 4), generator=random)
        losses = []
        for module in (model, eager):
            module.zero_grad()
            losses.append(module(x, ids))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        assert_same_gradients(model, eager)
    assert 2 <= len(model.report().exports) <= 8


def test_a_number_of_chosen_activations_needs_only_the_choice() -> None:
    class Contrastive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.shape[0]
            scores = self.layer(x) @ x.T
            others = scores[~torch.eye(n, dtype=torch.bool)].view(n, -1)
            return (others.logsumexp(-1) - scores.diagonal()).mean()

    eager = Contrastive()
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for size in (4, 6, 9, 4, 5):
        x = torch.randn(size, 4)
        losses = []
        for module in (model, eager):
            module.zero_grad()
            losses.append(module(x))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        assert_same_gradients(model, eager)
    assert len(model.report().exports) <= 2


def from_activations(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if model.layer(x).sum().item() > 0 else x


def a_root(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(x.square().max().item())


def by_chance(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.rand(3).sum().item() > 1.5 else x


@pytest.mark.parametrize("body", [from_activations, a_root, by_chance])
def test_other_numbers_are_left_to_pytorch(body: Callable[..., torch.Tensor]) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(body(self, x)).sum()

    eager = Whole()
    model = ORTModule(copy.deepcopy(eager))
    with pytest.warns(UserWarning, match="runs in PyTorch"):
        for seed in range(4):
            results = []
            for module in (model, eager):
                torch.manual_seed(seed)
                results.append(module(torch.randn(2, 4)))
            torch.testing.assert_close(*results)
    assert model.report().fallback == "whole" and not model.report().exports


TABLE = torch.tensor([2.0, 3.0])
SETTINGS: dict[str, Callable[[Any], float]] = {
    "of a table": lambda model: float(model.table[1]),
    "by Python's arithmetic": lambda model: math.exp(-model.table[0]) * round(float(model.table.sum())),
    "outside of the module": lambda model: float(TABLE[0]) + float(model.table[0]),
}


class WithTable(nn.Module):
    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(4, 4), read
        self.register_buffer("table", torch.tensor([1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.read(self)


@pytest.mark.parametrize("name", SETTINGS)
def test_floating_numbers_of_buffers_are_settings(name: str) -> None:
    eager = WithTable(SETTINGS[name])
    model = ORTModule(eager, options=Options(fallback="error"))
    for factor in (1.0, 1.0, -1.5, 1.0):
        eager.table.mul_(factor)
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), eager(x))
    assert len(model.report().exports) == 2


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf, math.nan])
def test_floating_numbers_that_symbols_have_not(value: float) -> None:
    eager = WithTable(lambda model: math.copysign(2.0, float(model.table[0])) * (3.0 if model.table[0] > 1 else 5.0))
    model = ORTModule(eager)
    for number in (value, 1.0, -value, value):
        eager.table[0] = number
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), eager(x))


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_a_floating_number_that_moves_with_each_call_is_left_to_pytorch() -> None:
    def read(model: Any) -> float:
        return float(model.table[0])

    eager = WithTable(read)
    model = ORTModule(copy.deepcopy(eager))
    for _ in range(8):
        x = torch.randn(2, 4)
        torch.testing.assert_close(model(x), eager(x))
        for module in (model.module, eager):
            module.table.add_(1.0)
    assert 1 <= len(model.report().exports) <= 3
