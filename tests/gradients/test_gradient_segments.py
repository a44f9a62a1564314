"""Gradients reach those who wait for them while the backward still runs: Note [Gradient segments]."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn as nn

from tests.support import assert_same_gradients, pair

LAYERS = 5


class Wide(nn.Module):
    """Layers of 1 MiB each, and an input that may want a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return x, self.layers[-1](x)


def backward(module: nn.Module, x: torch.Tensor, **settings: bool) -> None:
    first, second = module(x)
    (first.mean() + second.square().mean()).backward(**settings)


def watch(module: nn.Module, seen: list[str]) -> None:
    for name, p in module.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))


def test_hooks_run_between_the_nodes_of_the_backward() -> None:
    model, eager = pair(Wide())
    x = torch.randn(3, 512)
    seen: list[str] = []
    watch(model, seen)
    backward(model, x)
    backward(eager, x)
    assert_same_gradients(model, eager)
    session = model._manager.transitions()[0].session
    assert session.statistics()["gradient_segments"] >= LAYERS - 1
    seen.clear()
    session.observe(lambda phase, *_: seen.append("node") if phase == "backward" else None)
    backward(model, x)
    last_node = len(seen) - 1 - seen[::-1].index("node")
    assert len([n for n in seen[:last_node] if n != "node"]) >= 2 * (LAYERS - 2)
    assert seen.index("layers.4.weight") < seen.index("layers.0.weight")


def test_an_optimizer_in_the_hooks_frees_each_gradient_at_once() -> None:
    model, eager = pair(Wide())
    most = [0]
    for module in (model, eager):
        steps = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}

        def step(p: torch.Tensor, module: nn.Module = module, steps: dict = steps) -> None:
            most[0] = max(most[0], sum(q.grad is not None for q in module.parameters()))
            steps[p].step()
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            backward(module, torch.ones(2, 512))
    assert most == [1]
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("which", [["layers.4.weight"], ["layers.0.weight"], ["layers.2.bias", "layers.4.bias"]])
def test_gradients_asked_for_by_name(which: list[str]) -> None:
    model, eager = pair(Wide())
    x = torch.randn(3, 512)
    watch(model, [])
    results = []
    for module in (model, eager):
        first, second = module(x)
        loss = first.mean() + second.square().mean()
        wanted = [module.get_parameter(name) for name in which]
        results.append([*torch.autograd.grad(loss, wanted, retain_graph=True), *torch.autograd.grad(loss, wanted)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_retained_graphs_outputs_without_gradient_and_input_gradients() -> None:
    model, eager = pair(Wide())
    watch(model, [])
    inputs = [torch.linspace(-1, 1, 1024).reshape(2, 512).requires_grad_() for _ in range(2)]
    for module, x in zip((model, eager), inputs, strict=True):
        backward(module, x, retain_graph=False)
        first, second = module(x)
        loss = second.sum()
        loss.backward(retain_graph=True)
        loss.backward()
        first, second = module(x)
        first.sum().backward()
        one, two = module(x)[1].mean(), module(x * 2)[1].mean()
        two.backward()
        one.backward()
    assert_same_gradients(model, eager)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-5)


def test_a_second_backward_and_a_failing_hook_are_errors_that_leave_nothing_behind() -> None:
    model, _ = pair(Wide())
    p = model.get_parameter("layers.3.weight")

    def fail(p: torch.Tensor) -> None:
        raise ValueError("a hook that fails")

    handle = p.register_post_accumulate_grad_hook(fail)
    with pytest.raises(ValueError, match="a hook that fails"):
        backward(model, torch.ones(2, 512))
    handle.remove()
    watch(model, [])
    first, second = model(torch.ones(2, 512))
    second.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        second.sum().backward()
    gc.collect()
    backward(model, torch.ones(2, 512))
