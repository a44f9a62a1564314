"""Modes of autograd around and inside a call: gradient and inference mode, anomaly detection, hooks on what is saved,
transforms, forward mode, other threads, mixed precision.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, graph
from torch.utils.checkpoint import checkpoint

from .scenario import Net, Scenario, check, state
from .table import rand

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


def loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


# -- around the call --------------------------------------------------------------------------------------------------


@scenario
def enable_grad_inside_no_grad_around(m: Any) -> Iterator[Any]:
    for _ in range(2):
        with torch.no_grad():
            y = m(rand(5, 4))
            with torch.enable_grad():
                z = m(rand(5, 4))
        yield y.requires_grad, z.requires_grad, y, z
        loss(z).backward()


@scenario
def inference_mode_around(m: Any) -> Iterator[Any]:
    for _ in range(2):
        with torch.inference_mode():
            y = m(rand(5, 4))
            with torch.inference_mode(False):
                z = m(rand(5, 4))
        yield y, y.is_inference(), z.requires_grad, z.is_inference()
        loss(z).backward()


@scenario
def gradients_enabled_within_inference_mode(m: Any) -> Iterator[Any]:
    for _ in range(3):
        with torch.inference_mode(), torch.enable_grad():
            y = m(rand(5, 4))
        yield y, y.requires_grad, y.is_inference(), y.grad_fn is None
        loss(m(rand(5, 4))).backward()
        yield state(m)


@scenario
def an_inference_tensor_as_argument(m: Any) -> Iterator[Any]:
    with torch.inference_mode():
        x = rand(5, 4)
    with torch.no_grad():
        yield m(x)


@scenario
def an_inference_result_goes_on(m: Any) -> Iterator[Any]:
    with torch.inference_mode():
        y = m(rand(5, 4))
    yield y * 2
    w = torch.ones(3, requires_grad=True)
    yield (y * w).sum()


@scenario
def set_grad_enabled_by_hand(m: Any) -> Iterator[Any]:
    for on in (False, True, False, True):
        torch.set_grad_enabled(on)
        try:
            y = m(rand(5, 4))
        finally:
            torch.set_grad_enabled(True)
        yield y.requires_grad, y.grad_fn is None, y.is_leaf


@scenario
def no_grad_around_the_backward(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    with torch.no_grad():
        loss_value = y.sum()
        yield loss_value.requires_grad
    z = loss(y)
    with torch.no_grad():
        z.backward()


@scenario
def anomaly_detection(m: Any) -> Iterator[Any]:
    for _ in range(2):
        with torch.autograd.detect_anomaly():
            loss(m(rand(5, 4))).backward()
            yield state(m)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss(m(rand(5, 4))).backward()


class Root(nn.Module):
    """Whose gradient at zero is not a number where it is multiplied by zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        return (torch.sqrt(h * 0) * 0).sum() + h.sum()


def anomaly_found(m: Any) -> Iterator[Any]:
    for _ in range(2):
        x = rand(5, 4)
        m(x).backward()
    try:
        with torch.autograd.detect_anomaly():
            m(x).backward()
            yield "nothing"
    except RuntimeError as error:
        yield "returned nan values" in str(error)
    m.zero_grad()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        m(x).backward()
        yield state(m)
    m.zero_grad()
    y = m(x)
    try:
        with torch.autograd.detect_anomaly():
            y.backward()
            yield "nothing"
    except RuntimeError as error:
        yield "returned nan values" in str(error)
    m.zero_grad()
    m(x).backward()


@scenario
def saved_tensors_hooks_around(m: Any) -> Iterator[Any]:
    packed: list[Any] = []
    unpacked: list[Any] = []

    def pack(t: torch.Tensor) -> Any:
        packed.append(t.shape)
        return t.clone()

    def unpack(t: torch.Tensor) -> torch.Tensor:
        unpacked.append(t.shape)
        return t

    for _ in range(2):
        with graph.saved_tensors_hooks(pack, unpack):
            y = m(rand(5, 4))
        packed_then = len(packed)
        loss(y).backward()
        yield sorted(map(str, packed)), sorted(map(str, unpacked)), packed_then


@scenario
def saved_tensors_hooks_that_change(m: Any) -> Iterator[Any]:
    with graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = m(rand(5, 4))
    loss(y).backward()


@scenario
def saved_tensors_on_the_host(m: Any) -> Iterator[Any]:
    with graph.save_on_cpu():
        y = m(rand(5, 4))
    loss(y).backward()
    loss(m(rand(5, 4))).backward()


@scenario
def saved_tensors_hooks_disabled(m: Any) -> Iterator[Any]:
    with graph.disable_saved_tensors_hooks("not here"):
        loss(m(rand(5, 4))).backward()


@scenario
def mutation_of_saved_tensors_allowed(m: Any) -> Iterator[Any]:
    with graph.allow_mutation_on_saved_tensors():
        x = rand(5, 4)
        y = m(x)
        x.mul_(3)
        with torch.no_grad():
            m.second.weight.mul_(2)
            m.scale.mul_(2)
        loss(y).backward()


@scenario
def one_thread_for_the_backward(m: Any) -> Iterator[Any]:
    with torch.autograd.set_multithreading_enabled(False):
        loss(m(rand(5, 4))).backward()


@scenario
def the_backward_in_another_thread(m: Any) -> Iterator[Any]:
    for _ in range(2):
        z = loss(m(rand(5, 4)))
        thread = threading.Thread(target=z.backward)
        thread.start()
        thread.join()
        yield state(m)


@scenario
def the_forward_in_another_thread(m: Any) -> Iterator[Any]:
    made: list[Any] = []
    x = rand(5, 4)
    thread = threading.Thread(target=lambda: made.append(m(x)))
    thread.start()
    thread.join()
    loss(made[0]).backward()
    yield made


@scenario
def a_checkpoint_around_a_forward_that_counts(m: Any) -> Iterator[Any]:
    for reentrant in (False, True, False):
        x = rand(5, 4).requires_grad_()
        loss(checkpoint(m, x, use_reentrant=reentrant)).backward()
        yield x.grad, state(m)


# -- transforms -------------------------------------------------------------------------------------------------------


@scenario
def transforms(m: Any) -> Iterator[Any]:
    x = rand(5, 4)
    parameters = {name: p.detach() for name, p in m.named_parameters()}
    buffers = {name: b.clone() for name, b in m.named_buffers()}

    def value(given: Any, one: torch.Tensor) -> torch.Tensor:
        return loss(torch.func.functional_call(m, {**given, **buffers}, (one,)))

    yield torch.func.grad(value)(parameters, x)
    yield torch.func.jvp(lambda v: value(parameters, v), (x,), (torch.ones_like(x),))
    yield loss(torch.func.functional_call(m, {n: p * 2 for n, p in parameters.items()}, (x,)))
    wanted = {n: (p * 2).requires_grad_() for n, p in parameters.items()}
    loss(torch.func.functional_call(m, wanted, (x,))).backward()
    yield {n: p.grad for n, p in wanted.items()}
    loss(m(x)).backward()


@scenario
def forward_mode(m: Any) -> Iterator[Any]:
    x, tangent = rand(5, 4), rand(5, 4)
    with forward_ad.dual_level():
        yield forward_ad.unpack_dual(m(forward_ad.make_dual(x, tangent))).tangent
        yield m(x)
    yield m(x)


@scenario
def parts_of_autograd_grad(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    y = m(x)
    yield torch.autograd.grad(y, x, torch.ones(5, 3), retain_graph=True)
    yield torch.autograd.grad([y, y * 2], [x, m.first.bias], [torch.ones(5, 3), torch.ones(5, 3)], retain_graph=True)
    other = torch.ones(2, requires_grad=True)
    yield torch.autograd.grad(y.sum(), [other, x], allow_unused=True, retain_graph=True)
    yield torch.autograd.grad(y.sum(), [other, x], allow_unused=True, materialize_grads=True, retain_graph=True)
    yield torch.autograd.grad(y, x, torch.eye(15).view(15, 5, 3), is_grads_batched=True, retain_graph=True)
    yield torch.autograd.functional.jacobian(m, x.detach(), vectorize=True)
    yield torch.autograd.functional.jacobian(m, x.detach())
    torch.autograd.grad(y.sum(), [other])


@scenario
def backward_of_a_result_that_is_no_scalar(m: Any) -> Iterator[Any]:
    m(rand(5, 4)).backward(torch.ones(5, 3))
    yield state(m)
    m(rand(5, 4)).backward()


@scenario
def a_gradient_of_another_shape(m: Any) -> Iterator[Any]:
    m(rand(5, 4)).backward(torch.ones(5, 2))


@scenario
def gradients_scaled(m: Any) -> Iterator[Any]:
    optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss(m(rand(5, 4)))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        yield state(m), scaler.get_scale()


@scenario
def a_copy_of_a_result(m: Any) -> Iterator[Any]:
    y = m(rand(5, 4))
    try:
        yield copy.deepcopy(y)
    except RuntimeError as error:
        yield "Only Tensors created explicitly" in str(error)
    yield copy.deepcopy(y.detach())
    with torch.no_grad():
        yield copy.deepcopy(m(rand(5, 4)))


# -- inside the forward -----------------------------------------------------------------------------------------------


def hidden_under_no_grad(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h = m.first(x)
        with torch.enable_grad():
            k = m.first(x)
    return m.second(torch.tanh(h + k))


def grad_enabled_for_the_rest(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return m.second(torch.tanh(m.first(x)))


def half_enabled(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(m.first(x))
    with torch.enable_grad():
        return m.second(h)


def set_by_hand(m: Any, x: torch.Tensor) -> torch.Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    h = m.first(x)
    torch.set_grad_enabled(before)
    return m.second(torch.tanh(h))


def left_disabled(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.second(torch.tanh(m.first(x)))
    torch.set_grad_enabled(False)
    return y


def inference_inside(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        factor = m.first(x).mean()
    return m.second(torch.tanh(m.first(x))) * float(factor > -100)


def detached_parts(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.first(x)
    return m.second(torch.tanh(h.detach() + m.first(x.detach())))


def requires_grad_set_inside(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.first.weight.requires_grad_(not m.first.weight.requires_grad)
    return m.second(torch.tanh(m.first(x)))


def requires_grad_set_on_input(m: Any, x: torch.Tensor) -> Any:
    x.requires_grad_()
    return m.second(torch.tanh(m.first(x)))


def a_leaf_made_inside(m: Any, x: torch.Tensor) -> Any:
    h = m.first(x).detach().requires_grad_()
    return m.second(torch.tanh(h)), h


def gradient_taken_inside(m: Any, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(m.first(z).square().sum(), z)
    return m.second(torch.tanh(m.first(x + g)))


def backward_inside(m: Any, x: torch.Tensor) -> Any:
    y = m.second(torch.tanh(m.first(x)))
    if y.requires_grad:
        y.sum().backward(retain_graph=True)
    return y


def saved_hooks_inside(m: Any, x: torch.Tensor) -> Any:
    with graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        h = torch.tanh(m.first(x))
    return m.second(h)


def anomaly_inside(m: Any, x: torch.Tensor) -> Any:
    with torch.autograd.set_detect_anomaly(True):
        return m.second(torch.tanh(m.first(x)))


FORWARDS = [
    hidden_under_no_grad, grad_enabled_for_the_rest, half_enabled, set_by_hand, left_disabled, inference_inside,
    detached_parts, requires_grad_set_inside, requires_grad_set_on_input, a_leaf_made_inside, gradient_taken_inside,
    backward_inside, saved_hooks_inside, anomaly_inside,
]  # fmt: skip


class Running(Net):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def in_every_mode(m: Any) -> Iterator[Any]:
    for grad in (True, True, False, False, True):
        x = rand(5, 4)
        torch.set_grad_enabled(grad)
        try:
            result = m(x)
            yield torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
        parts = result if isinstance(result, tuple) else (result,)
        yield parts, [(y.requires_grad, y.is_leaf) for y in parts], x.requires_grad
        if parts[0].requires_grad:
            loss(parts[0]).backward()
            yield state(m), x.grad, [y.grad for y in parts[1:]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
def test_modes(name: str) -> None:
    check(SCENARIOS[name])


@pytest.mark.filterwarnings("ignore")
def test_an_anomaly_is_found() -> None:
    check(anomaly_found, Root, None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", FORWARDS, ids=lambda run: run.__name__)
def test_modes_inside_a_forward(run: Any) -> None:
    check(in_every_mode, lambda: Running(run), None)
