"""What a session keeps of autograd between steps shows nowhere: Notes [Kept accumulators] and [Shared buffers]."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from tests.support import assert_same_gradients, mlp, pair


def train(module: nn.Module, steps: int = 3, size: int = 4) -> None:
    for _ in range(steps):
        module.zero_grad()
        module(torch.linspace(-1, 1, 5 * size).reshape(5, size)).square().mean().backward()


def accumulator(p: torch.Tensor) -> torch.autograd.graph.Node:
    return p.expand_as(p).grad_fn.next_functions[0][0]


def test_steps_lead_to_the_same_accumulator() -> None:
    model = ORTModule(mlp())
    train(model)
    ids = []
    for _ in range(2):
        loss = model(torch.ones(5, 4)).sum()
        edges = {node.variable: node for node, _ in loss.grad_fn.next_functions[0][0].next_functions if node}
        ids.append([edges[p] is accumulator(p) for p in model.parameters()])
        loss.backward()
    assert all(map(all, ids))


def test_another_type_and_back() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        train(module)
        module.double()
        module.float()
        train(module)
    assert_same_gradients(model, eager)
    seen: list[torch.Tensor] = []
    node = accumulator(model.get_parameter("0.weight"))
    node.register_hook(lambda *_: seen.append(torch.ones(())))
    train(model, steps=2)
    assert len(seen) == 2
    assert_same_gradients(model, eager)


def test_data_of_other_sizes() -> None:
    def shrink(module: nn.Module) -> None:
        first = module.get_submodule("0")
        first.weight.data = first.weight.data[:, :3].clone()

    model, eager = pair(mlp())
    for module in (model, eager):
        train(module)
        module.zero_grad()
        shrink(module)
        train(module, size=3)
    assert_same_gradients(model, eager)
    train(model.module, size=3)
    assert_same_gradients(model, eager)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return torch.addcmul(y, y, self.scale)


def narrower(module: nn.Module) -> None:
    module.get_parameter("scale").data = torch.full((1,), 5.0)


def wider(module: nn.Module) -> None:
    module.get_parameter("linear.weight").data = torch.ones(4, 8)


@pytest.mark.parametrize("change", [narrower, wider], ids=lambda one: one.__name__)
@pytest.mark.parametrize("alive", [False, True], ids=["results are gone", "a result is alive"])
def test_data_of_other_sizes_while_results_are_alive(alive: bool, change: Callable[[nn.Module], None]) -> None:
    """Eager's backward then meets the accumulator of the old sizes: it raises, or gives a gradient of these."""
    found: list[list[Any]] = []
    for module in pair(Scaled()):
        seen: list[Any] = []
        found.append(seen)
        kept: list[torch.Tensor] = []
        for step in range(8):
            module.zero_grad()
            if step == 4:
                change(module)
            y = module(torch.ones(5 + step % 2, module.get_parameter("linear.weight").shape[1]))
            if alive:
                kept = [y]
            try:
                y.sum().backward()
            except RuntimeError as error:
                seen.append(str(error).split("Function ")[1].split("Backward0 ")[1].split(" at index")[0])
            else:
                seen.append([p.grad for p in module.parameters()])
            del y
        kept.clear()
    for mine, eager in zip(*found, strict=True):
        assert isinstance(mine, str) == isinstance(eager, str)
        if isinstance(mine, str):
            assert mine == eager
        else:
            torch.testing.assert_close(mine, eager)
    assert alive or not any(isinstance(one, str) for one in found[0])


def test_a_parameter_in_a_second_path_of_the_same_backward() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        train(module)
        weight = module.get_parameter("0.weight")
        module.zero_grad()
        loss = module(torch.ones(5, 4)).sum() + (weight * 3).sum()
        loss.backward()
        loss = module(torch.ones(5, 4)).sum() + module(torch.ones(5, 4)).square().sum()
        loss.backward()
    assert_same_gradients(model, eager)


def test_a_replaced_parameter_gets_no_gradient() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        train(module)
        module.zero_grad()
        first = module.get_submodule("0")
        old, first.weight = first.weight, nn.Parameter(torch.full_like(first.weight, 0.1))
        train(module, steps=2)
        assert old.grad is None
    assert_same_gradients(model, eager)


def test_an_input_that_requires_a_gradient_is_freed() -> None:
    model = ORTModule(mlp())
    for _ in range(6):
        x = torch.ones(5, 4, requires_grad=True)
        model(x).sum().backward()
        assert x.grad is not None
    gone = weakref.ref(x)
    del x
    model(torch.ones(5, 4, requires_grad=True)).sum().backward()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("train_it", [True, False])
def test_nothing_of_a_batch_outlives_its_step(train_it: bool) -> None:
    model = ORTModule(mlp())
    with torch.set_grad_enabled(train_it):
        for _ in range(4):
            x = torch.ones(5, 4)
            loss = model(x).sum()
            if train_it:
                loss.backward()
    gone = [weakref.ref(x), weakref.ref(loss)]
    del x, loss
    assert [ref() for ref in gone] == [None, None]


def test_forwards_that_never_go_backward_and_steps_between_them() -> None:
    model, eager = pair(mlp())
    held = []
    for i in range(6):
        x = torch.full((5, 4), 0.1 * i)
        held.append((model(x).square().sum(), eager(x).square().sum()))
        if i % 2:
            for loss in held.pop(0):
                loss.backward(retain_graph=i == 3)
    assert_same_gradients(model, eager)


def test_two_sessions_share_what_they_keep() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        for _ in range(3):
            for mode in (True, False):
                module.train(mode)
                train(module, steps=2)
    assert_same_gradients(model, eager)


def test_losses_that_live_on_and_sessions_in_turns() -> None:
    model, eager = pair(mlp())
    other, other_eager = pair(mlp())
    kept: list[torch.Tensor] = []
    for module, second in ((model, other), (eager, other_eager)):
        for step in range(8):
            x = torch.full((5, 4), 0.1 * step)
            module.train(step % 4 < 2)
            loss = module(x).square().sum() + (second(x).sum() if step % 3 else 0)
            loss.backward(retain_graph=step == 5)
            if step == 5:
                loss.backward()
            kept = [*kept[-1:], loss]
    assert_same_gradients(model, eager)
    assert_same_gradients(other, other_eager)


def test_a_hook_and_a_second_path_after_steps_without() -> None:
    model, eager = pair(mlp())
    called = []
    for module in (model, eager):
        for step in range(6):
            loss = module(torch.ones(5, 4)).square().sum()
            weight = module.get_parameter("0.weight")
            if step == 3:
                hook = weight.register_hook(lambda g: (called.append(1), g * 2)[1])
            if step == 4:
                loss = loss + (weight * 3).sum()
            loss.backward()
            if step == 4:
                hook.remove()
    assert len(called) == 4
    assert_same_gradients(model, eager)


def test_a_loss_that_outlives_a_release_keeps_no_accumulator() -> None:
    model = ORTModule(mlp())
    train(model)
    loss = model(torch.ones(5, 4)).sum()
    loss.backward()
    model._manager.release_edges()
    del loss
    called: list[int] = []
    accumulator(model.get_parameter("0.weight")).register_hook(lambda *_: called.append(1))  # and goes, with its hook
    model.module(torch.ones(5, 4)).sum().backward()
    assert called == []


def test_parameters_go_with_their_module() -> None:
    model = ORTModule(mlp())
    train(model)
    loss = model(torch.ones(5, 4)).sum()
    loss.backward()
    gone = [weakref.ref(p) for p in model.parameters()]
    del model
    gc.collect()
    del loss
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)


class Stacked(nn.Module):
    """Gradients that are parts of one buffer."""

    def __init__(self, axis: int = 0) -> None:
        super().__init__()
        self.axis = axis
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(8, 8)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.cat(list(self.rows), self.axis) * x).square().sum()


def test_parts_of_one_buffer_are_separate_gradients() -> None:
    for axis in (0, 1):
        model, eager = pair(Stacked(axis))
        x = torch.randn(32, 8) if axis == 0 else torch.randn(8, 32)
        for module in (model, eager):
            for _ in range(2):
                module(x).backward()  # made, then added to
            module.rows[1].grad.zero_()
            module(x).backward(retain_graph=False)
        assert_same_gradients(model, eager)


def test_parts_are_copied_where_the_graph_is_kept() -> None:
    model, eager = pair(Stacked())
    x = torch.randn(32, 8)
    for module in (model, eager):
        loss = module(x)
        loss.backward(retain_graph=True)
        module.zero_grad(set_to_none=False)
        loss.backward()
    assert_same_gradients(model, eager)


class StackedRows(nn.Module):
    """Parameters that are one operand, some of them frozen."""

    def __init__(self, axis: int, frozen: tuple[int, ...]) -> None:
        super().__init__()
        self.axis = axis
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(3, 5), i not in frozen) for i in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stacked = torch.stack(list(self.rows), self.axis)
        return (stacked.movedim(self.axis, 0) * x).square().sum()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("frozen", [(), (0, 3), (4, 5)])
def test_stacked_parameters_have_separate_gradients(axis: int, frozen: tuple[int, ...]) -> None:
    model, eager = pair(StackedRows(axis, frozen))
    x = torch.randn(6, 3, 5)
    for module in (model, eager):
        loss = module(x)
        loss.backward(retain_graph=True)
        module.rows[1].grad.zero_()
        loss.backward()
        module.rows[2].grad = None
        module(x * 2).backward()
    assert_same_gradients(model, eager)
    assert [i for i, p in enumerate(model.rows) if p.grad is None] == list(frozen)
    assert "Unstack" in model._manager.transitions()[0].session.plan_text()


class Same(nn.Module):
    """Two leaves with one and the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.a.reshape(64) + self.b) * x).square().sum()


def test_gradients_of_one_value_do_not_share_memory() -> None:
    model, eager = pair(Same())
    x = torch.randn(64)
    for module in (model, eager):
        module(x).backward()
        module.a.grad.mul_(2)
    assert_same_gradients(model, eager)
    assert model.a.grad.untyped_storage().data_ptr() != model.b.grad.untyped_storage().data_ptr()


def test_gradients_of_a_wider_type_than_their_parameter() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        module.bfloat16()
        module.get_parameter("0.weight").grad_dtype = torch.float32
        module.zero_grad()
        module(torch.ones(5, 4, dtype=torch.bfloat16)).float().square().mean().backward()
    got, expected = model.get_parameter("0.weight").grad, eager.get_parameter("0.weight").grad
    assert got.dtype == expected.dtype == torch.float32
