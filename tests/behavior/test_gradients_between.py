"""`.grad` that is there, is set or is read before a backward, and backwards of every form: the step must give eager's
numbers, or eager's error. Not here: what becomes of the leaves themselves (test_leaves_between.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .scenario import Net, Scenario, check, state
from .table import rand

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


def loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


# -- .grad ------------------------------------------------------------------------------------------------------------


@scenario
def gradients_add_up(m: Any) -> Iterator[Any]:
    held = []
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        held.append(m.first.weight.grad)
    yield held, [g is held[0] for g in held]


@scenario
def gradients_of_zero(m: Any) -> Iterator[Any]:
    for p in m.parameters():
        p.grad = torch.zeros_like(p)
    kept = [p.grad for p in m.parameters()]
    loss(m(rand(5, 4))).backward()
    m.zero_grad(set_to_none=False)
    loss(m(rand(5, 4))).backward()
    yield kept, [p.grad is g for p, g in zip(m.parameters(), kept, strict=True)]


@scenario
def one_gradient_for_two_parameters(m: Any) -> Iterator[Any]:
    m.second.bias.grad = torch.zeros(3)
    m.first.bias.grad = torch.zeros(8)
    buffer = torch.zeros(8, 4)
    m.first.weight.grad = buffer
    m.second.weight.grad = buffer.flatten()[:24].view(3, 8)
    for _ in range(2):
        loss(m(rand(5, 4))).backward()
        yield buffer


@scenario
def gradients_in_one_flat_buffer(m: Any) -> Iterator[Any]:
    flat, at = torch.zeros(sum(p.numel() for p in m.parameters())), 0
    for p in m.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        yield flat


@scenario
def gradients_of_other_layouts(m: Any) -> Iterator[Any]:
    m.first.weight.grad = torch.zeros(4, 8).T
    m.second.weight.grad = torch.zeros(1, 1).expand(3, 8)
    loss(m(rand(5, 4))).backward()
    yield m.first.weight.grad.stride()


@scenario
def a_sparse_gradient_is_there(m: Any) -> Iterator[Any]:
    m.first.weight.grad = torch.ones(8, 4).to_sparse()
    loss(m(rand(5, 4))).backward()
    yield m.first.weight.grad.layout == torch.strided


@scenario
def a_gradient_with_history_is_there(m: Any) -> Iterator[Any]:
    w = torch.ones(8, 4, requires_grad=True)
    m.first.weight.grad = w * 2
    loss(m(rand(5, 4))).backward()
    yield m.first.weight.grad.requires_grad


@scenario
def a_gradient_that_somebody_holds(m: Any) -> Iterator[Any]:
    loss(m(rand(5, 4))).backward()
    held = m.first.weight.grad
    m.first.weight.grad = None
    loss(m(rand(5, 4))).backward()
    yield held
    old = held.clone()
    m.first.weight.grad = held
    loss(m(rand(5, 4))).backward()
    yield old, held


@scenario
def gradients_replaced_between_forward_and_backward(m: Any) -> Iterator[Any]:
    loss(m(rand(5, 4))).backward()
    y = m(rand(5, 4))
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    m.second.bias.grad = None
    loss(y).backward()


@scenario
def a_gradient_is_the_parameter_itself(m: Any) -> Iterator[Any]:
    m.second.bias.grad = m.second.bias.data
    loss(m(rand(5, 4))).backward()
    yield m.second.bias


@scenario
def the_version_of_a_gradient_counts(m: Any) -> Iterator[Any]:
    loss(m(rand(5, 4))).backward()
    grad = m.first.weight.grad
    before = grad._version
    loss(m(rand(5, 4))).backward()
    yield m.first.weight.grad is grad, grad._version > before


@scenario
def the_version_of_parameters_counts_not(m: Any) -> Iterator[Any]:
    before = [p._version for p in m.parameters()]
    loss(m(rand(5, 4))).backward()
    yield [p._version - v for p, v in zip(m.parameters(), before, strict=True)], m.scale._version


# -- backwards --------------------------------------------------------------------------------------------------------


@scenario
def backward_twice_is_refused(m: Any) -> Iterator[Any]:
    z = loss(m(rand(5, 4)))
    z.backward()
    yield state(m)
    z.backward()


@scenario
def backward_three_times_with_retain_graph(m: Any) -> Iterator[Any]:
    z = loss(m(rand(5, 4)))
    for _ in range(2):
        z.backward(retain_graph=True)
        yield state(m)
    z.backward()


@scenario
def backwards_in_other_orders(m: Any) -> Iterator[Any]:
    losses = [loss(m(rand(5, 4))) for _ in range(4)]
    for i in (2, 0, 3, 1):
        losses[i].backward()
        yield state(m)


@scenario
def one_backward_of_many_forwards(m: Any) -> Iterator[Any]:
    sum(loss(m(rand(5, 4))) for _ in range(4)).backward()  # type: ignore[attr-defined]


@scenario
def a_module_fed_with_its_own_result(m: Any) -> Iterator[Any]:
    y = rand(5, 4)
    for _ in range(3):
        y = torch.cat([m(y), y[:, :1]], 1)
    loss(y).backward()


@scenario
def only_a_part_of_the_leaves_is_wanted(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    loss(m(x)).backward(inputs=[m.first.weight, x])
    yield x.grad
    m.zero_grad()
    yield torch.autograd.grad(loss(m(x)), [m.second.bias, x])
    loss(m(x)).backward()


class Separate(Net):
    """Two results that reach different parameters."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), self.second(x.new_ones(5, 8))


def two_results(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    a, b = m(x)
    a.sum().backward()
    yield state(m), x.grad
    b.sum().backward()
    yield state(m)
    a, b = m(x)
    yield torch.autograd.grad(b.sum(), [m.first.weight, m.second.weight, x], allow_unused=True)
    a, b = m(x)
    yield torch.autograd.grad(b.sum(), [m.first.weight])


def warm_two(m: Any) -> None:
    for _ in range(3):
        a, b = m(rand(5, 4).requires_grad_())
        (a.sum() + b.sum()).backward()
    m.zero_grad()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
def test_gradients_and_backwards(name: str) -> None:
    check(SCENARIOS[name])


@pytest.mark.filterwarnings("ignore")
def test_results_that_reach_different_leaves() -> None:
    check(two_results, Separate, warm_two)


def reads_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    grad = m.first.weight.grad
    y = m.second(torch.tanh(m.first(x)))
    return y if grad is None else y * grad.norm()


def branches_on_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.second(torch.tanh(m.first(x)))
    return y * 2 if m.first.weight.grad is None else y * 3


def returns_gradient(m: Any, x: torch.Tensor) -> Any:
    return m.second(torch.tanh(m.first(x))), m.first.weight.grad


def writes_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.first.weight.grad is not None:
        m.first.weight.grad.mul_(0.5)
    return m.second(torch.tanh(m.first(x)))


def resets_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.zero_grad()
    return m.second(torch.tanh(m.first(x)))


def reads_gradient_of_input(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.second(torch.tanh(m.first(x)))
    return y if x.grad is None else y + x.grad.sum()


class Reading(Net):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def with_gradients(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    for step in range(6):
        if step == 3:
            m.zero_grad()
        result = m(x)
        y = result[0] if isinstance(result, tuple) else result
        yield result
        loss(y).backward()
        yield state(m)


READERS = [
    reads_gradient, branches_on_gradient, returns_gradient, writes_gradient, resets_gradient, reads_gradient_of_input,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", READERS, ids=lambda run: run.__name__)
@pytest.mark.parametrize("warm", [0, 2])
def test_a_forward_that_reads_gradients(run: Any, warm: int) -> None:
    check(with_gradients, lambda: Reading(run), lambda m: [m(rand(5, 4)) for _ in range(warm)] and None)
