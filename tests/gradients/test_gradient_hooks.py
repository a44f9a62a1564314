"""Hooks see the gradients that eager shows them: Note [Direct gradient writes] in csrc/autograd/module_backward.h."""

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


class Towers(nn.Module):
    """Two outputs that share no parameter; wide ones have a backward in segments where hooks wait."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 2))
        self.second = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, width), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x).sin(), self.second(x).square()


def mark(p, name, log):
    return p.register_hook(lambda g: log.append((name, g is None)))


def mark_after(p, name, log):
    return p.register_post_accumulate_grad_hook(lambda p: log.append((name, p.grad is None)))


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("register", [mark, mark_after])
@pytest.mark.parametrize("width", [8, 600])
def test_hooks_of_leaves_that_the_loss_does_not_reach_are_not_called(
    width: int, register: Callable, retain: bool
) -> None:
    model, eager = pair(Towers(width))
    logs: list[list[tuple[str, bool]]] = [[], []]
    for module, log in zip((model, eager), logs, strict=True):
        for name, p in module.named_parameters():
            if not name.endswith("2.weight"):  # some without a hook
                register(p, name, log)
        for _ in range(2):
            outputs = module(torch.linspace(-1, 1, 20).reshape(5, 4))
            for output in outputs:
                output.mean().backward(retain_graph=retain)
                log.append(("done", False))
            if retain:
                (outputs[0].mean() + outputs[1].mean()).backward()
    assert [e for e in logs[0] if e[1]] == []
    between = [[sorted(part.split()) for part in " ".join(name for name, _ in log).split("done")] for log in logs]
    assert between[0] == between[1]
    assert_same_gradients(model, eager)


def test_a_leaf_of_two_paths_gets_the_gradient_of_the_other_one() -> None:
    """The loss reaches it outside of the module only: its hook is called once, with that."""
    model, eager = pair(Towers(8))
    logs: list[list[tuple[str, bool]]] = [[], []]
    for module, log in zip((model, eager), logs, strict=True):
        shared = module.get_parameter("second.0.weight")
        mark_after(shared, "shared", log)
        for _ in range(2):
            (module(torch.ones(5, 4))[0].mean() + shared.square().sum()).backward()
    assert logs[0] == logs[1] == [("shared", False)] * 2
    assert_same_gradients(model, eager)


def test_an_optimizer_inside_backward_meets_a_loss_over_some_outputs() -> None:
    model, eager = pair(Towers(600))
    for module in (model, eager):
        steps = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}

        def step(p: torch.Tensor, steps=steps) -> None:
            assert p.grad is not None
            steps[p].step()
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(step)
        for k in (0, 1, 1, 0):
            module(torch.ones(5, 4))[k].mean().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_gradient_of_another_type_or_layout_is_added_by_autograd() -> None:
    model, eager = pair(mlp())
    for module in (model, eager):
        module.get_parameter("0.weight").grad = torch.ones(4, 8).t()
        run(module)
    assert_same_gradients(model, eager)
