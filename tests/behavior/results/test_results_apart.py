"""Results of equal values, which passes compute once, are memory of their own; views of one value share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule

Tensor = torch.Tensor


class Net(nn.Module):
    def __init__(self, results: Callable[[Net, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.linear, self.results = nn.Linear(4, 4), results

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.results(self, x)


def rows_of_products(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    a, b = m.linear(x), m.linear(x)
    return a[0], b[0], a.t(), b.view(-1), b


def several_views_of_the_second(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    a, b = m.linear(x).view(2, 2, 2), m.linear(x).view(2, 2, 2)
    return a.transpose(0, 1), b.transpose(0, 1), a[0, 0], b[0, 0]


def views_of_sums(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.sum(1), x.sum(1)
    return a.view(1, -1), b.view(1, -1), a


def parts(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    a, b = (x + 1).chunk(2, 1), (x + 1).chunk(2, 1)
    return a[0], b[0], a[1]


def copies(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y[0], y.clone()[0], torch.cat([y])[0], y.double().float()[0], torch.empty_like(y).copy_(y)[0]


def other_types(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    return x.double()[0], x.to(torch.float64)[0], x.argmax(1)[:1], x.argmax(1).unsqueeze(0)


def sorted_twice(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.sort(1), x.sort(1)
    return a.values[0], b.values[0], a.indices[0], b.indices[0]


def copies_of_what_is_given(m: Net, x: Tensor) -> tuple[Tensor, ...]:
    return x.clone()[0], x.clone()[0], x[0], m.linear.weight.clone()[0], m.linear.weight.clone()[0]


RESULTS = [
    rows_of_products, several_views_of_the_second, views_of_sums, parts, copies, other_types, sorted_twice,
    copies_of_what_is_given,
]  # fmt: skip


def written(module: nn.Module, index: int, x: Tensor) -> list[Any]:
    with torch.no_grad():
        results = module(x)
        results[index].mul_(3)
    return [*results, x]


@pytest.mark.parametrize("results", RESULTS)
def test_what_is_written_into_one_is_seen_as_in_eager(results: Any) -> None:
    torch.manual_seed(0)
    model = Net(results)
    fast = ORTModule(model)
    x = torch.randn(2, 4)
    for index in range(len(fast(x))):
        for _ in range(2):
            for there, here in zip(written(model, index, x.clone()), written(fast, index, x.clone()), strict=True):
                torch.testing.assert_close(here, there)
    assert fast.report().fallback == "none"


@pytest.mark.parametrize("results", RESULTS)
def test_gradients_of_what_is_written_into_one(results: Any) -> None:
    """Where eager has any: it refuses to go on over a saved value that was written."""
    torch.manual_seed(0)
    model = Net(results)
    fast = ORTModule(model)
    for index in range(len(fast(torch.randn(2, 4)))):
        x = torch.randn(2, 4)
        there, here = gradients(model, index, x), gradients(fast, index, x)
        if there is not None and here is not None:
            for one, other in zip(there, here, strict=True):
                torch.testing.assert_close(other, one)


def gradients(module: nn.Module, index: int, x: Tensor) -> list[Tensor | None] | None:
    module.zero_grad()
    x = x.clone().requires_grad_()
    try:
        results = module(x)
        with torch.no_grad():
            results[index].mul_(3)
        torch.stack([r.square().sum() for r in results if r.requires_grad]).sum().backward()
    except RuntimeError:
        return None
    return [x.grad, *(p.grad for p in module.parameters())]
