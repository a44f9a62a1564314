"""Hooks of every kind around a call: which run, in which order, with which gradients, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.modules.module as torch_module
from torch import nn

from .scenario import Scenario, check, state, steps
from .table import rand

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


def loss(y: torch.Tensor) -> torch.Tensor:
    return y.square().sum()


def noted(log: list[str], text: str) -> Any:
    return lambda *args, **kwargs: log.append(text)


@scenario
def hooks_on_parameters(m: Any) -> Iterator[Any]:
    log: list[str] = []
    handles = []
    for name, p in m.named_parameters():
        handles.append(p.register_hook(noted(log, name)))
        handles.append(p.register_post_accumulate_grad_hook(noted(log, f"{name} after")))
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        yield list(log)
        log.clear()
    for handle in handles:
        handle.remove()
    loss(m(rand(5, 4))).backward()
    yield log


@scenario
def hooks_that_change_gradients(m: Any) -> Iterator[Any]:
    m.first.weight.register_hook(lambda g: g * 2)
    m.first.bias.register_hook(lambda g: g.clamp(-0.1, 0.1))
    m.second.bias.register_hook(torch.zeros_like)
    for _ in range(2):
        loss(m(rand(5, 4))).backward()


@scenario
def a_hook_registered_between_forward_and_backward(m: Any) -> Iterator[Any]:
    log: list[str] = []
    y = m(rand(5, 4))
    m.first.weight.register_hook(lambda g: g * 3)
    m.second.weight.register_post_accumulate_grad_hook(noted(log, "after"))
    loss(y).backward()
    yield log


@scenario
def hooks_on_all_parameters_registered_between_forward_and_backward(m: Any) -> Iterator[Any]:
    log: list[str] = []
    for _ in range(2):
        y = m(rand(5, 4).requires_grad_())
        handles = [p.register_hook(noted(log, name)) for name, p in m.named_parameters()]
        handles += [
            p.register_post_accumulate_grad_hook(noted(log, f"{name} after")) for name, p in m.named_parameters()
        ]
        loss(y).backward()
        yield list(log)
        log.clear()
        for handle in handles:
            handle.remove()
        loss(m(rand(5, 4))).backward()


@scenario
def hooks_on_some_parameters_and_gradients_of_some(m: Any) -> Iterator[Any]:
    log: list[str] = []
    for name in ("second.bias", "first.weight", "second.weight"):
        m.get_parameter(name).register_hook(noted(log, name))
    x = rand(5, 4).requires_grad_()
    x.register_hook(noted(log, "x"))
    wanted = [m.first.weight, x, m.second.bias]
    yield torch.autograd.grad(loss(m(x)), wanted), list(log)
    loss(m(x)).backward(inputs=wanted[:2])
    yield list(log)
    y = m(x)
    yield torch.autograd.grad(y, wanted, torch.eye(15).view(15, 5, 3), is_grads_batched=True), list(log)
    z = loss(m(x) * m.second.bias)
    for _ in range(2):
        z.backward(retain_graph=True)
        yield list(log)


@scenario
def hooks_on_accumulators(m: Any) -> Iterator[Any]:
    log: list[str] = []
    held = []
    for name, p in m.named_parameters():
        held.append(p.view_as(p).grad_fn.next_functions[0][0])
        held[-1].register_prehook(noted(log, f"{name} before"))
        held[-1].register_hook(noted(log, name))
    for _ in range(3):
        loss(m(rand(5, 4))).backward()
        yield list(log)
        log.clear()


@scenario
def hooks_on_leaves_that_are_reached_on_other_paths_too(m: Any) -> Iterator[Any]:
    log: list[str] = []
    w = torch.ones(5, 3, requires_grad=True)
    for name, p in [*m.named_parameters(), ("w", w)]:
        p.register_hook(noted(log, name))
    for _ in range(2):
        (loss(m(rand(5, 4)) * w) + (w * 3).tanh().sum() + m.first.weight.sum() + m.second.bias.sum()).backward()
        (loss(m(rand(5, 4))) + loss(m(rand(5, 4)))).backward()
        yield list(log)


@scenario
def a_hook_that_runs_the_module(m: Any) -> Iterator[Any]:
    inside: list[Any] = []

    def hook(_: torch.Tensor) -> None:
        if len(inside) % 2 == 0:
            inside.append(None)
            with torch.enable_grad():
                z = loss(m(torch.ones(5, 4)))
            z.backward()
            inside.append(z.detach())

    m.second.weight.register_hook(hook)
    for _ in range(2):
        loss(m(rand(5, 4))).backward()
        yield state(m), inside


class Deep(nn.Module):
    """Leaves of every kind of layer, one of them used twice, one not at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv, self.norm = nn.Linear(4, 8), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2)
        self.middle, self.last = nn.Linear(6, 5), nn.Linear(5, 5, bias=False)
        self.scale, self.unused = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(torch.tanh(self.first(x))[:, None]))
        return self.last(self.last(self.middle(h) * self.scale)) * self.scale


def order_in_deep(m: Any) -> Iterator[Any]:
    log: list[str] = []
    handles: list[Any] = []
    for step in range(6):
        if step == 2:
            handles += [p.register_hook(noted(log, name)) for name, p in m.named_parameters()]
        if step == 4:
            m.norm.requires_grad_(False)
        x = rand(5, 4).requires_grad_(step % 2 == 0)
        x.register_hook(noted(log, "x")) if x.requires_grad else None
        loss(m(x)).backward()
        yield list(log)
        log.clear()


@scenario
def a_hook_removed_between_forward_and_backward(m: Any) -> Iterator[Any]:
    handle = m.first.weight.register_hook(lambda g: g * 3)
    y = m(rand(5, 4))
    handle.remove()
    loss(y).backward()


@scenario
def hooks_on_inputs_and_results(m: Any) -> Iterator[Any]:
    log: list[Any] = []
    for _ in range(2):
        x = rand(5, 4).requires_grad_()
        x.register_hook(lambda g: log.append(("input", g)))
        x.register_post_accumulate_grad_hook(noted(log, "input after"))
        y = m(x)
        y.register_hook(lambda g: log.append(("result", g)))
        y.register_hook(lambda g: g * 2)
        loss(y).backward()
        yield log, x.grad
        log.clear()


@scenario
def a_gradient_kept_of_a_result_and_an_input(m: Any) -> Iterator[Any]:
    x = rand(5, 4).requires_grad_()
    y = m(x * 1)
    y.retain_grad()
    x.retain_grad()
    loss(y).backward()
    yield y.grad, x.grad


@scenario
def a_hook_on_a_tensor_before_the_module(m: Any) -> Iterator[Any]:
    log: list[str] = []
    x = rand(5, 4).requires_grad_()
    h = x * 2
    h.register_hook(noted(log, "before"))
    h.retain_grad()
    y = m(h)
    y.register_hook(noted(log, "after"))
    loss(y).backward()
    yield log, h.grad


@scenario
def prehooks_and_hooks_of_the_results_node(m: Any) -> Iterator[Any]:
    log: list[Any] = []
    y = m(rand(5, 4))
    y.grad_fn.register_prehook(lambda grads: (log.append(len(grads)), tuple(g * 2 for g in grads))[1])
    loss(y).backward()
    yield log


@scenario
def hooks_over_several_tensors(m: Any) -> Iterator[Any]:
    log: list[Any] = []
    y, z = m(rand(5, 4)), m(rand(5, 4))
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: log.append(grads))
    torch.autograd.graph.register_multi_grad_hook(tuple(m.parameters()), lambda grads: log.append(len(grads)))
    (loss(y) + loss(z)).backward()
    yield log


@scenario
def a_hook_that_raises(m: Any) -> Iterator[Any]:
    def broken(_: Any) -> None:
        raise ValueError("no")

    handle = m.first.weight.register_hook(broken)
    y = m(rand(5, 4))
    try:
        loss(y).backward()
    except ValueError as error:
        yield str(error)
    handle.remove()
    m.zero_grad()
    loss(m(rand(5, 4))).backward()


def with_module_hooks(where: Any) -> Scenario:
    """Every kind of module hook on the module that `where` picks, added and removed again."""

    def run(m: Any) -> Iterator[Any]:
        log: list[Any] = []
        at = where(m)
        handles = [
            at.register_forward_pre_hook(lambda _, args: log.append(("pre", args))),
            at.register_forward_pre_hook(lambda _, args, kwargs: log.append(("pre kw", kwargs)), with_kwargs=True),
            at.register_forward_hook(lambda _, args, y: log.append(("post", y))),
            at.register_forward_hook(lambda _, args, kwargs, y: y * 2, with_kwargs=True),
            at.register_forward_hook(lambda _, args, y: log.append(("always", y)), always_call=True),
            at.register_full_backward_pre_hook(lambda _, dys: log.append(("backward pre", dys))),
            at.register_full_backward_hook(lambda _, dxs, dys: log.append(("backward", dxs, dys))),
            at.register_forward_pre_hook(lambda _, args: log.append("first"), prepend=True),
        ]
        for _ in range(2):
            x = rand(5, 4).requires_grad_()
            loss(m(x)).backward()
            yield list(log), x.grad, state(m)
            log.clear()
        for handle in handles:
            handle.remove()
        for _ in range(2):
            loss(m(rand(5, 4))).backward()
        yield log

    return run


PLACES = {
    "the wrapper": lambda m: m,
    "the module": lambda m: getattr(m, "_original", m),
    "a layer": lambda m: m.first,
    "the last layer": lambda m: m.second,
}


def changing_backward_hooks(m: Any) -> Iterator[Any]:
    handles = [
        m.register_full_backward_pre_hook(lambda _, dys: tuple(d * 2 for d in dys)),
        m.register_full_backward_hook(lambda _, dxs, dys: tuple(None if d is None else d * 3 for d in dxs)),
        m.second.register_full_backward_hook(lambda _, dxs, dys: tuple(d * 5 for d in dxs)),
    ]
    x = rand(5, 4).requires_grad_()
    loss(m(x)).backward()
    yield x.grad, state(m)
    handles.pop().remove()
    for _ in range(2):
        loss(m(x)).backward()
        yield x.grad, state(m)


def global_hooks(m: Any) -> Iterator[Any]:
    log: list[Any] = []
    kinds = {getattr(m, "_original", m): "net", m: "net", m.first: "first", m.second: "second"}

    def note(text: str) -> Any:
        return lambda one, *args: log.append((text, kinds.get(one)))

    handles = [
        torch_module.register_module_forward_pre_hook(note("pre")),
        torch_module.register_module_forward_hook(note("post")),
        torch_module.register_module_full_backward_pre_hook(note("backward pre")),
        torch_module.register_module_full_backward_hook(note("backward")),
    ]
    try:
        x = rand(5, 4).requires_grad_()
        loss(m(x)).backward()
        # The wrapper is a module as well, around the one that it wraps.
        yield [entry for i, entry in enumerate(log) if entry[1] != "net" and entry not in log[:i]], x.grad
    finally:
        for handle in handles:
            handle.remove()
    loss(m(x)).backward()
    yield x.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCENARIOS)
def test_hooks(name: str) -> None:
    check(SCENARIOS[name], warm=lambda m: steps(m, grad=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", [False, True])
def test_hooks_are_in_order_where_the_first_call_recorded_no_gradients(wanted: bool) -> None:
    def run(m: Any) -> Iterator[Any]:
        log: list[str] = []
        with torch.no_grad():
            m(rand(5, 4))
        for name, p in m.named_parameters():
            p.register_hook(noted(log, name))
        for _ in range(2):
            x = rand(5, 4).requires_grad_(wanted)
            x.register_hook(noted(log, "x")) if wanted else None
            loss(m(x)).backward()
            yield list(log)

    check(run, warm=None)


@pytest.mark.filterwarnings("ignore")
def test_hooks_on_the_leaves_of_layers_of_every_kind() -> None:
    check(order_in_deep, Deep, lambda m: steps(m, grad=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES)
def test_hooks_of_modules(place: str) -> None:
    check(with_module_hooks(PLACES[place]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [changing_backward_hooks, global_hooks], ids=lambda run: run.__name__)
def test_hooks_of_modules_that(run: Scenario) -> None:
    check(run)


@pytest.mark.filterwarnings("ignore")
def test_a_hook_added_between_forward_and_backward_of_a_module() -> None:
    def run(m: Any) -> Iterator[Any]:
        log: list[str] = []
        y = m(rand(5, 4))
        handle = m.first.register_full_backward_hook(noted(log, "backward"))
        loss(y).backward()
        yield log
        handle.remove()
        loss(m(rand(5, 4))).backward()

    check(run)
