"""Buffers that a forward binds anew: what others hold of the old ones stays, and the new ones are what eager's are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support import Lambda, assert_same_gradients, exports, pair


def moved(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = 0.9 * m.table + 0.1 * x.mean(0)
    return m.linear(x) * m.table


def swapped(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table, m.other = m.other, m.table
    return m.linear(x) * m.table + m.other


def auxiliary(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    m.table = y.square().mean(0)
    return y


def noted(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = x[0]
    return m.linear(x)


def of_weights(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = m.linear.bias.detach()
    return m.linear(x)


FORWARDS = [moved, swapped, auxiliary, noted, of_weights]


def two(forward: Any) -> tuple[Any, nn.Module]:
    module = Lambda(forward)
    module.register_buffer("other", torch.full((4,), 3.0))
    return pair(module)


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_old_buffer_stays_as_it_was(forward: Any) -> None:
    model, eager = two(forward)
    for _ in range(4):
        x = torch.randn(2, 4)
        before = [(m.table, m.table.clone()) for m in (model, eager)]
        model(x), eager(x)
        for old, value in before:
            assert torch.equal(old, value)
        torch.testing.assert_close(model.table, eager.table)
        assert (model.table is before[0][0]) == (eager.table is before[1][0])
    assert model.report().fallback == "none"


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_loss_of_the_new_buffer_has_eagers_gradients(forward: Any) -> None:
    model, eager = two(forward)
    for _ in range(3):
        x = torch.randn(2, 4)
        for m in (model, eager):
            m.zero_grad()
            (m(x).sum() + m.table.square().sum()).backward()
            m.table = m.table.detach()
        assert_same_gradients(model, eager)
    assert exports(model) == 1


def test_a_buffer_that_keeps_a_history_raises_as_in_eager() -> None:
    def recurrent(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        m.table = torch.tanh(m.linear(x).mean(0) * m.table)
        return m.linear(x) + m.table

    for m in two(recurrent):
        x = torch.randn(2, 4)
        m(x).sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            m(x).sum().backward()


def test_a_steady_call_is_native() -> None:
    model, _ = two(moved)
    x = torch.randn(2, 4)
    for _ in range(5):
        model(x).sum().backward()
    (fast,) = model._manager.fast_calls
    assert fast.runs == 4


@pytest.mark.parametrize("first_a_parameter", [False, True])
def test_a_parameter_in_a_buffers_place_is_another_kind_of_module(first_a_parameter: bool) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.put(first_a_parameter)

        def put(self, parameter: bool) -> None:
            if hasattr(self, "table"):
                del self.table
            if parameter:
                self.table = nn.Parameter(torch.full((4,), 2.0))
            else:
                self.register_buffer("table", torch.full((4,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            for buffer in self.buffers():
                y = y + buffer.sum()
            return y

    model, eager = pair(Sum())
    for parameter in (first_a_parameter, not first_a_parameter, first_a_parameter):
        for m in (model, eager):
            (m.module if m is model else m).put(parameter)
        for _ in range(2):
            x = torch.randn(2, 4)
            torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2


@pytest.mark.parametrize("seen", [lambda t: t.t(), lambda t: t.flip(0)[:, [1, 0, 2, 3]], lambda t: t[:, :2]])
def test_a_weight_that_shows_other_elements_of_its_memory_is_refused_in_the_backward(seen: Any) -> None:
    model, _ = two(auxiliary)
    x = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        model(x).sum().backward()
    loss = model(x).sum()
    model.linear.weight.data = seen(model.linear.weight.data)
    with pytest.raises(RuntimeError, match="given other memory"):
        loss.backward()


def test_a_buffer_that_is_returned_is_the_one_that_is_there() -> None:
    def given(m: Lambda, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return m.linear(x), m.table

    model, _ = two(given)
    tables = torch.zeros(4), torch.ones(4)
    for i in (0, 0, 1, 1, 0, 1, 0):
        model.table = tables[i]
        assert model(torch.randn(2, 4))[1] is tables[i]
