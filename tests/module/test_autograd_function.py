"""What a forward tells autograd is honoured: custom Functions, no_grad blocks, detach, checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.support import Lambda, assert_same_gradients, exports, pair


class Reversal(torch.autograd.Function):
    """The identity, with a gradient that is on purpose not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.factor * g, None


class Product(torch.autograd.Function):
    """Two inputs, two outputs, saved tensors."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return 10 * g * b + h, g * a + 5 * h


def no_grad_block(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        mean = m.linear(x).mean(0)
    return (m.linear(x) - mean).square().mean()


def checkpointed(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda t: F.relu(m.linear(t)), m.linear(x), use_reentrant=False).square().mean()


def products(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    a, b = Product.apply(m.linear(x), x)
    return (a * b).mean()


FORWARDS = {
    "function": lambda m, x: Reversal.apply(m.linear(x), 0.5).square().mean(),
    "function of two": products,
    "no_grad": no_grad_block,
    "detach": lambda m, x: (m.linear(x) * m.linear(x).detach()).mean(),
    "checkpoint": checkpointed,
    "straight through": lambda m, x: (m.linear(x) + (m.linear(x).round() - m.linear(x)).detach()).square().mean(),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_gradients_equal_eagers(name: str) -> None:
    model, eager = pair(Lambda(FORWARDS[name]))
    for batch in (3, 5, 2):
        x = torch.randn(batch, 4)
        losses = []
        for module in (model, eager):
            module.zero_grad()
            losses.append(module(x))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        assert_same_gradients(model, eager)
    assert exports(model) <= 2


def test_a_gradient_of_its_own_reaches_the_input() -> None:
    model, _ = pair(Lambda(lambda m, x: Reversal.apply(x, 0.5) + 0 * m.linear(x)))
    x = torch.ones(2, 4, requires_grad=True)
    model(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 4), -0.5))


def test_an_error_in_a_functions_backward_arrives_as_it_is() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise KeyError("from the user's backward")

    model, _ = pair(Lambda(lambda m, x: Failing.apply(m.linear(x)).sum()))
    loss = model(torch.ones(2, 4))
    with pytest.raises(KeyError, match="from the user's backward"):
        loss.backward()


def test_a_forward_wholly_under_no_grad_has_no_history() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return m.linear(x)

    model, eager = pair(Lambda(forward))
    got = model(torch.ones(2, 4))
    assert not got.requires_grad
    torch.testing.assert_close(got, eager(torch.ones(2, 4)))
