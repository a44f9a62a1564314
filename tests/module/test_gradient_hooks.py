"""Hooks see the gradients that eager shows them: Note [Direct gradient writes] in csrc/bindings/autograd_node.h."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn as nn

from tests.support import assert_same_gradients, mlp, pair


def run(module: nn.Module, retain: bool = False) -> None:
    loss = module(torch.linspace(-1, 1, 20).reshape(5, 4)).square().mean()
    if retain:
        loss.backward(retain_graph=True)
    loss.backward()


def accumulator(p: torch.Tensor) -> torch.autograd.graph.Node:
    return p.expand_as(p).grad_fn.next_functions[0][0]


def on_tensor(p, seen):
    return p.register_hook(lambda g: seen.append(g.clone()) or g * 2)


def on_post_accumulate(p, seen):
    return p.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))


def on_accumulator(p, seen):
    return accumulator(p).register_hook(lambda *_: seen.append(p.grad.clone()))


def on_accumulator_before(p, seen):
    return accumulator(p).register_prehook(lambda g: seen.append(g[0].clone()))


KINDS = [on_tensor, on_post_accumulate, on_accumulator, on_accumulator_before]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("register", KINDS)
def test_a_hook_sees_what_it_sees_in_eager(register: Callable, retain: bool) -> None:
    model, eager = pair(mlp())
    seen: list[list[torch.Tensor]] = [[], []]
    keep = []
    for module, log in zip((model, eager), seen, strict=True):
        keep += [accumulator(module.get_parameter("0.weight")), register(module.get_parameter("0.weight"), log)]
        run(module, retain)
    assert len(seen[0]) == len(seen[1]) == 1 + retain
    for got, expected in zip(*seen, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("register", KINDS)
def test_a_hook_registered_between_forward_and_backward_is_honoured(register: Callable) -> None:
    model, eager = pair(mlp())
    calls = []
    keep = []
    for module in (model, eager):
        log: list[torch.Tensor] = []
        loss = module(torch.ones(5, 4)).square().mean()
        keep += [accumulator(module.get_parameter("2.bias")), register(module.get_parameter("2.bias"), log)]
        loss.backward()
        calls.append(len(log))
    assert calls == [1, 1]
    assert_same_gradients(model, eager)


def test_a_removed_hook_is_no_longer_called() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        handle = on_tensor(module.get_parameter("0.bias"), [])
        run(module)
        handle.remove()
        run(module)
    assert_same_gradients(model, eager)


def test_a_hook_on_the_output_changes_what_flows_back() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        out = module(torch.ones(5, 4))
        out.register_hook(lambda g: g * 3)
        out.sum().backward()
    assert_same_gradients(model, eager)


def test_an_optimizer_that_steps_inside_backward_works() -> None:
    """The pattern of PyTorch's tutorial: a step per parameter in its hook, so that no gradient stays."""
    model, eager = pair(mlp())
    for module in (model, eager):
        steps = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}

        def step(p: torch.Tensor, steps=steps) -> None:
            steps[p].step()
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            run(module)
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert p.grad is None
        torch.testing.assert_close(p, q)


def test_a_gradient_of_another_type_or_layout_is_added_by_autograd() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        module.get_parameter("0.weight").grad = torch.ones(4, 8).t()
        run(module)
    assert_same_gradients(model, eager)
