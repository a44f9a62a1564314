"""Parameters and inputs that change between forward and backward, or between steps: requires_grad, `.data`, `.grad`,
values. A graph is made for what they were; the step must give eager's numbers, or eager's error.
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
def test_leaves_and_backwards(name: str) -> None:
    # Which memory eager reads after `.data =` hangs on the operator: the parameter's of now, or a view's of then.
    set_between = name.startswith("data") and name.endswith("set between forward and backward")
    check(SCENARIOS[name], refusal="was given other memory" if set_between else None)


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
