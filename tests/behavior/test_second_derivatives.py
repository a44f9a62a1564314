"""Gradients that are differentiated again, of modules that draw random numbers, change or write something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule

from .scenario import check, state
from .table import rand


class Dropping(nn.Module):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.second = nn.Linear(4, 16), nn.Dropout(p), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.tanh(self.first(x))))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


def penalty(m: Any) -> Iterator[Any]:
    for _ in range(3):
        x = rand(6, 4).requires_grad_()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + (g.norm(dim=1) - 1).square().mean()).backward()
        yield y, g, x.grad, state(m), torch.rand(2)
        m.zero_grad()


def hessian_vector(m: Any) -> Iterator[Any]:
    for _ in range(2):
        parameters = list(m.parameters())
        z = m(rand(6, 4)).square().sum()
        grads = torch.autograd.grad(z, parameters, create_graph=True)
        product = sum((g * torch.ones_like(g)).sum() for g in grads)
        yield torch.autograd.grad(product, parameters, retain_graph=True)  # type: ignore[arg-type]
        z.backward()
        yield state(m), torch.rand(2)
        m.zero_grad()


def backward_with_history(m: Any) -> Iterator[Any]:
    x = rand(6, 4).requires_grad_()
    m(x).square().sum().backward(create_graph=True)
    yield x.grad, x.grad.requires_grad
    first = x.grad
    x.grad = None
    m.zero_grad()
    first.square().sum().backward()
    yield x.grad, state(m)


def third(m: Any) -> Iterator[Any]:
    x = rand(6, 4).requires_grad_()
    g = m(x).sum()
    for _ in range(3):
        (g,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        yield g


def many_directions(m: Any) -> Iterator[Any]:
    x = rand(6, 4).requires_grad_()
    ways = torch.eye(6).view(6, 6, 1)
    (g,) = torch.autograd.grad(m(x), x, ways, is_grads_batched=True, create_graph=True)
    g.square().sum().backward()
    yield g, x.grad, state(m)


def with_hooks(m: Any) -> Iterator[Any]:
    log: list[str] = []
    for name, p in m.named_parameters():
        p.register_hook(lambda g, name=name: log.append(name))
    x = rand(6, 4).requires_grad_()
    h = x * 1
    h.retain_grad()
    m(h).square().sum().backward(create_graph=True)
    yield log, h.grad, x.grad
    (x.grad.sum() + h.grad.sum()).backward()
    yield log, x.grad, state(m)


def changed_before(m: Any) -> Iterator[Any]:
    x = rand(6, 4).requires_grad_()
    y = m(x)
    with torch.no_grad():
        m.second.weight.mul_(3)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    yield g


def warm(m: Any) -> None:
    for _ in range(3):
        m(rand(6, 4).requires_grad_()).sum().backward()
    m.zero_grad()


PROGRAMS = [
    penalty, hessian_vector, backward_with_history, third, many_directions, with_hooks, changed_before,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warmed", [False, True])
@pytest.mark.parametrize("make", [Dropping, Normed])
@pytest.mark.parametrize("run", PROGRAMS, ids=lambda run: run.__name__)
def test_second_derivatives(run: Any, make: Any, warmed: bool) -> None:
    # A step of an optimizer between forward and backward is found out where the engine has to run the call again.
    refusal = "cannot be differentiated again" if run is changed_before and make is Dropping else None
    check(run, make, warm if warmed else None, refusal=refusal)


@pytest.mark.filterwarnings("ignore")
def test_a_mask_is_the_same_in_both_derivatives() -> None:
    model = ORTModule(Dropping())
    model.second.weight.data.fill_(1)
    warm(model)
    x = torch.zeros(6, 4, requires_grad=True)
    bits = torch.arange(1 << 16)[:, None] >> torch.arange(16) & 1  # every mask of the 16 units
    for _ in range(3):
        z = model(x).sum()
        torch.rand(5)  # what is drawn after the forward does not count
        (g,) = torch.autograd.grad(z, x, create_graph=True)
        g.square().sum().backward()
        # At x = 0 the gradient is the sum of the kept units' weights, times the derivative of tanh, times 2.
        slope = 1 - model.first.bias.detach().tanh().square()
        sums = bits.float() @ (model.first.weight.detach() * slope[:, None] * 2)
        kept = [bits[(sums - row).abs().sum(1).argmin()].bool() for row in g.detach()]
        for mask, row in zip(kept, g.detach(), strict=True):
            torch.testing.assert_close((model.first.weight.detach() * slope[:, None] * 2)[mask].sum(0), row)
        # A unit that was dropped in every row gets no second derivative.
        dropped = ~torch.stack(kept).any(0)
        assert not model.first.weight.grad[dropped].any()
        assert model.first.weight.grad[~dropped].any()
        model.zero_grad()
