"""Parameters and inputs that change between forward and backward, or between steps: requires_grad, `.data`, values. A
graph is made for what they were; the step must give eager's numbers, or eager's error. Not here: `.grad` and backward
itself (test_gradients_between.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .scenario import Scenario, check, state
from .table import rand

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


def loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


# -- requires_grad ----------------------------------------------------------------------------------------------------


@scenario
def frozen_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.first.weight.requires_grad_(False)
    loss(y).backward()
    yield state(m)
    m.first.weight.requires_grad_(True)
    loss(m(rand(5, 4))).backward()


@scenario
def unfrozen_between_forward_and_backward(m: Any) -> Iterator[Any]:
    m.first.weight.requires_grad_(False)
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
    yield state(m)
    y = m(rand(5, 4))
    m.first.weight.requires_grad_(True)
    loss(y).backward()
    yield state(m)
    loss(m(rand(5, 4))).backward()


@scenario
def all_frozen_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.requires_grad_(False)
    loss(y).backward()
    yield state(m)
    y = m(rand(5, 4))
    yield y.requires_grad
    m.requires_grad_(True)
    yield y.requires_grad, y.grad_fn is None
    loss(y).backward()


@scenario
def one_of_many_toggled_at_each_step(m: Any) -> Iterator[Any]:
    for step in range(8):
        m.second.bias.requires_grad_(step % 3 != 0)
        loss(m(rand(5, 4))).backward()
        yield state(m)


@scenario
def input_toggled_between_steps(m: Any) -> Iterator[Any]:
    x = rand(5, 4)
    for step in range(6):
        x.requires_grad_(step % 2 == 0)
        loss(m(x)).backward()
        yield x.grad


@scenario
def input_toggled_between_forward_and_backward(m: Any) -> Iterator[Any]:
    for _ in range(3):
        x = rand(5, 4).requires_grad_()
        y = m(x)
        x.requires_grad_(False)
        loss(y).backward()
        yield x.grad, x.requires_grad
    x = rand(5, 4)
    y = m(x)
    x.requires_grad_(True)
    loss(y).backward()
    yield x.grad


@scenario
def everything_frozen_and_an_input_that_wants(m: Any) -> Iterator[Any]:
    m.requires_grad_(False)
    for _ in range(3):
        x = rand(5, 4).requires_grad_()
        loss(m(x)).backward()
        yield x.grad
    m.requires_grad_(True)
    x = rand(5, 4)
    loss(m(x)).backward()
    yield x.grad


@scenario
def a_parameter_that_becomes_no_leaf(m: Any) -> Iterator[Any]:
    w = m.first.weight
    del m.first._parameters["weight"]
    m.first.weight = w.detach().clone()
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        yield m.first.bias.grad, m.first.weight.grad
    m.first.weight = w * 2
    loss(m(rand(5, 4))).backward()
    yield w.grad, m.first.bias.grad


# -- .data ------------------------------------------------------------------------------------------------------------


@scenario
def data_set_between_steps(m: Any) -> Iterator[Any]:
    for step in range(4):
        m.first.weight.data = torch.full((8, 4), 0.1 * step)
        loss(m(rand(5, 4))).backward()
        yield state(m)


@scenario
def data_set_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4).requires_grad_())
    for p in m.parameters():
        p.data = torch.zeros_like(p)
    loss(y).backward()


@scenario
def data_of_one_set_between_forward_and_backward(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    y = m(x)
    m.second.weight.data = torch.ones_like(m.second.weight)
    loss(y).backward()
    yield x.grad


@scenario
def data_of_another_size_between_steps(m: Any) -> Iterator[Any]:
    m.first.weight.data, m.first.bias.data = torch.full((8, 6), 0.1), torch.zeros(8)
    for _ in range(3):
        loss(m(rand(5, 6))).backward()
    yield state(m)


@scenario
def data_of_another_size_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.first.weight.data = torch.ones(8, 6)
    loss(y).backward()


@scenario
def data_of_another_type_between_steps(m: Any) -> Iterator[Any]:
    for dtype in (torch.float64, torch.float32):
        for t in (*m.parameters(), *m.buffers()):
            t.data = t.data.to(dtype)
        m.zero_grad()
        for _ in range(3):
            loss(m(rand(5, 4).to(dtype))).backward()
        yield state(m)


@scenario
def data_of_another_type_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.first.weight.data = m.first.weight.data.double()
    loss(y).backward()


@scenario
def data_of_an_input_set_between_forward_and_backward(m: Any) -> Iterator[Any]:
    x = rand(5, 4)
    y = m(x)
    x.data = torch.zeros(5, 4)
    loss(y).backward()
    yield x


@scenario
def data_of_a_buffer_set_between_steps(m: Any) -> Iterator[Any]:
    for step in range(3):
        m.scale.data = torch.full((8,), 0.5 + step)
        yield m(rand(5, 4))


@scenario
def set_underscore_between_steps(m: Any) -> Iterator[Any]:
    with torch.no_grad():
        m.first.weight.set_(torch.ones(8, 4))
    for _ in range(2):
        loss(m(rand(5, 4))).backward()


# -- values changed ---------------------------------------------------------------------------------------------------


@scenario
def a_parameter_written_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    with torch.no_grad():
        m.second.weight.mul_(2)
    loss(y).backward()


@scenario
def a_first_layers_parameter_written_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    with torch.no_grad():
        m.first.weight.mul_(2)  # its gradient is of the input alone: eager lets this pass
        m.first.bias.add_(1)
    loss(y).backward()


@scenario
def a_parameter_written_through_data_between(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.second.weight.data.mul_(2)  # eager does not notice, and uses the new values
    loss(y).backward()


@scenario
def an_input_written_between_forward_and_backward(m: Any) -> Iterator[Any]:
    x = rand(5, 4)
    y = m(x)
    x.mul_(3)
    loss(y).backward()


@scenario
def an_input_written_through_data_between(m: Any) -> Iterator[Any]:
    x = rand(5, 4)
    y = m(x)
    x.data.mul_(3)
    loss(y).backward()


@scenario
def a_buffer_written_between_forward_and_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    m.scale.mul_(2)
    loss(y).backward()


@scenario
def an_output_written_before_the_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    y.mul_(2)
    loss(y).backward()
    yield y


@scenario
def an_output_written_without_gradients(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    z = y.sum()
    with torch.no_grad():
        y.mul_(2)
    z.backward()
    yield y


@scenario
def an_optimizer_step_between_two_backwards_of_one_graph(m: Any) -> Iterator[Any]:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    z = loss(m(rand(5, 4)))
    z.backward(retain_graph=True)
    yield state(m)
    optimizer.step()
    z.backward()


@scenario
def two_forwards_a_step_and_the_other_backward(m: Any) -> Iterator[Any]:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    a, b = loss(m(rand(5, 4))), loss(m(rand(5, 4)))
    a.backward()
    optimizer.step()
    b.backward()


@scenario
def an_optimizer_in_a_hook(m: Any) -> Iterator[Any]:
    handles = []
    for p in m.parameters():
        one = torch.optim.SGD([p], lr=0.1)

        def step(_: Any, one: Any = one) -> None:
            one.step()
            one.zero_grad()

        handles.append(p.register_post_accumulate_grad_hook(step))
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        yield state(m)
    for handle in handles:
        handle.remove()
    loss(m(rand(5, 4))).backward()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
def test_leaves(name: str) -> None:
    # Which memory eager reads after `.data =` hangs on the operator: the parameter's of now, or a view's of then.
    set_between = name.startswith("data") and name.endswith("set between forward and backward")
    check(SCENARIOS[name], refusal="was given other memory" if set_between else None)
