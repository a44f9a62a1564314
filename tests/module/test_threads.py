"""Threads: the number of intra-op ones changes no result and no random draw, and what other threads of the program do
with the model while it is captured neither fails nor meets a tensor of the trace."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients, pair


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def net(p: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Dropout(p), nn.Linear(512, 64))


def test_a_step_on_several_threads_equals_eagers() -> None:
    torch.set_num_threads(4)
    model, eager = pair(net(0.0))
    x = torch.randn(512, 256)
    for module in (model, eager):
        module(x).square().mean().backward()
    assert_same_gradients(model, eager)


def test_fast_dropout_draws_the_same_on_any_number_of_threads() -> None:
    model, _ = pair(net(0.5))
    x = torch.randn(512, 256)
    losses = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        losses.append(next(model.parameters()).grad.norm())
    for i in (2, 4):
        torch.testing.assert_close(losses[i], losses[0])
        torch.testing.assert_close(losses[i + 1], losses[1])


meanwhile: list[Callable[[], None]] = []
_library = torch.library.Library("ortmodule_threads", "FRAGMENT")
_library.define("observed(Tensor x) -> Tensor")
_library.impl("observed", torch.Tensor.clone, "CompositeExplicitAutograd")


@torch.library.register_fake("ortmodule_threads::observed", lib=_library)
def _in_the_midst_of_a_trace(x: torch.Tensor) -> torch.Tensor:
    for action in meanwhile:
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()
    return torch.empty_like(x)


class Observed(nn.Module):
    """A backbone that is called twice, batch-norm statistics, and an operator that shows when a trace is under way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU())
        self.again = self.body
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = torch.ops.ortmodule_threads.observed(self.body[0].bias)
        return self.head(self.again(self.body(x))) + shift.sum()


def is_real(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and bool(tensor.isfinite().all())


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def a_checkpoint(model: nn.Module) -> bool:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return all(map(is_real, torch.load(file).values()))


def an_average_of_the_weights(model: nn.Module) -> bool:
    average = copy.deepcopy(model)
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(p, 0.5)
    tables = [type(table) for m in average.modules() for table in (vars(m)["_parameters"], vars(m)["_buffers"])]
    return set(tables) == {dict} and all(map(is_real, average.parameters()))


def a_forward_of_another_module(model: nn.Module) -> bool:
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    other(torch.ones(3, 4)).sum().backward()
    return all(map(is_real, [p.grad for p in other.parameters()]))


def a_forward_of_a_part_of_it(model: nn.Module) -> bool:
    y = model.head(torch.ones(3, 4))
    return is_real(y) and len(y) == 3 and type(model.head) is nn.Linear


def autograd_by_hand(model: nn.Module) -> bool:
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(Step.apply(x).sum(), x)
    torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    return first.tolist() == [3.0] * 3 and type(x.grad.data) is torch.Tensor


ACTIONS = [
    a_checkpoint, an_average_of_the_weights, a_forward_of_another_module, a_forward_of_a_part_of_it, autograd_by_hand,
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS, ids=lambda f: f.__name__)
def test_another_thread_meets_no_tensor_of_a_trace(action: Callable[[nn.Module], bool]) -> None:
    module = Observed()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    found: list[object] = []

    def act() -> None:
        try:
            found.append(action(model))
        except Exception as error:
            found.append(error)

    meanwhile.append(act)
    try:
        x = torch.randn(6, 4)
        got = model(x)
        got.sum().backward()
    finally:
        meanwhile.clear()
    assert found and set(found) == {True}, found
    expected = eager(x)
    expected.sum().backward()
    torch.testing.assert_close(got, expected)
    assert_same_gradients(model, eager)
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)
    assert model.report().fallback == "none"


def test_what_another_thread_sets_during_a_capture_stays_set() -> None:
    module = Observed()
    model = ORTModule(module, options=Options(fallback="error"))
    fresh = nn.Parameter(torch.full((2,), 7.0))

    def replace() -> None:
        module.head.bias = fresh

    meanwhile.append(replace)
    try:
        model(torch.randn(6, 4))
    finally:
        meanwhile.clear()
    assert module.head.bias is fresh
    x = torch.randn(6, 4)
    eager = copy.deepcopy(module)
    torch.testing.assert_close(model(x), eager(x))
    model(x).sum().backward()
    assert fresh.grad is not None
