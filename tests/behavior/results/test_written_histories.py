"""Tensors that a forward writes and that want a gradient, or get one by the write: autograd's history goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ..scenario import check, state
from ..table import rand


class Writing(nn.Module):
    """Runs one of the functions below; has a buffer that may want a gradient."""

    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor], wanted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.layer = run, nn.Linear(4, 4)
        self.table = nn.Buffer(torch.linspace(0.5, 2.0, 4).requires_grad_(wanted))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def an_input_is_scaled(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.layer(x.mul_(3))


def an_input_is_scaled_without(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(3)
    return m.layer(x)


def an_input_gets_the_result(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.layer(x.detach().clone())
    x.add_(y)
    return y


def a_row_of_an_input_is_set(m: Any, x: torch.Tensor) -> torch.Tensor:
    x[0] = m.table
    return m.layer(x)


def a_buffer_is_written_without(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.table.add_(1)
    return m.layer(x) * m.table


def a_buffer_is_filled_without(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.table.copy_(x[0])
    return m.layer(x) * m.table


def a_buffer_is_written_through_data(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.table.data.add_(1)
    return m.layer(x) * m.table


def a_buffer_is_written_detached(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.table.detach().mul_(2)
    return m.layer(x) * m.table


def a_buffer_is_written_after_its_use(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.layer(x) * m.table.clone()
    with torch.no_grad():
        m.table.add_(1)
    return y


def a_parameter_is_clamped_without(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.layer.weight.clamp_(-0.2, 0.2)
    return m.layer(x) * m.table


def a_buffer_keeps_a_history(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.layer(x)
    m.table.copy_(y[0])
    return y * m.table


RUNS = [
    an_input_is_scaled, an_input_is_scaled_without, an_input_gets_the_result, a_row_of_an_input_is_set,
    a_buffer_is_written_without, a_buffer_is_filled_without, a_buffer_is_written_through_data,
    a_buffer_is_written_detached, a_buffer_is_written_after_its_use, a_parameter_is_clamped_without,
    a_buffer_keeps_a_history,
]  # fmt: skip


def used_afterwards(kind: str) -> Any:
    """Steps with an input that is a leaf, that is none, and that wants no gradient; each also after the forward."""

    def run(m: Any) -> Iterator[Any]:
        for _ in range(3):
            leaf = rand(5, 4).requires_grad_(kind != "plain")
            x = leaf * 1 if kind == "inner" else leaf
            try:
                y = m(x)
                yield y, x, x.requires_grad, x.is_leaf, m.table, m.table.requires_grad, m.table.is_leaf
                (y.square().sum() + x.pow(3).sum() + m.table.pow(3).sum()).backward()
            except RuntimeError as error:
                yield "raised", "in-place" in str(error), "modified by an inplace" in str(error)
            yield leaf.grad, state(m), m.table.grad if m.table.is_leaf else None
            m.zero_grad()
            m.table = m.table.detach().clone().requires_grad_(m.table.requires_grad)

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("kind", ["plain", "leaf", "inner"])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_history_that_changes_by_a_write(run: Any, kind: str, wanted: bool) -> None:
    check(used_afterwards(kind), lambda: Writing(run, wanted), None)


@pytest.mark.filterwarnings("ignore")
def test_what_wants_no_gradient_is_written_in_the_engine_as_before() -> None:
    model = check(used_afterwards("plain"), lambda: Writing(a_buffer_is_written_without, False), None)
    assert model.report().fallback == "none"
