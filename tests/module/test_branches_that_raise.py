"""Questions about data, one answer to which only raises: the graph goes on with the other, and expects it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch.distributions import Categorical, Normal, kl_divergence

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients


class Autoencoder(nn.Module):
    """A variational one: distributions check their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log = self.encoder(x).chunk(2, -1)
        posterior = Normal(mean, log.exp())
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return (posterior.rsample() - x).square().mean() + kl_divergence(posterior, prior).mean()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        chosen = Categorical(logits=self.head(x))
        return -chosen.log_prob(action).mean() - 0.01 * chosen.entropy().mean()


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(4, 8), nn.GaussianNLLLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, raw = self.head(x).chunk(2, -1)
        return self.loss(mean, x, raw.exp())


class Checked(nn.Module):
    """Every form of the question that the bytecode tells apart."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(4, 4), form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.form == "if":
            if (y > 1000).any():
                raise ValueError(f"{self.form}: too large")
        elif self.form == "if not":
            if not (y < 1000).all():
                raise ValueError(f"{self.form}: too large")
        elif self.form == "item":
            if (y > 1000).any().item():
                raise ValueError(f"{self.form}: {'too large' if y.requires_grad else 'much too large'}")
        elif self.form == "bool":
            if bool((y > 1000).any()):
                raise ValueError(f"{self.form}: too large")
        elif self.form == "assert":
            assert y.max() < 1000, f"{self.form}: too large"
        else:
            torch._assert_async((y < 1000).all(), f"{self.form}: too large")
        return y.tanh().sum()


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Autoencoder, lambda n: (torch.randn(n, 4),)),
        (Policy, lambda n: (torch.randn(n, 4), torch.arange(n) % 5)),
        (Regression, lambda n: (torch.randn(n, 4),)),
    ],
)
def test_checks_of_torch_are_part_of_the_graph(module: Any, inputs: Any) -> None:
    torch.manual_seed(0)
    eager = module()
    model = ORTModule(copy.deepcopy(eager), options=Options(dropout="torch", fallback="error"))
    for size in (3, 5, 7):
        batch = inputs(size)
        losses = []
        for one in (eager, model):
            one.zero_grad()
            torch.manual_seed(size)
            losses.append(one(*batch))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0])
        assert_same_gradients(model, eager)
    assert len(model.report().exports) == 2


@pytest.mark.parametrize("form", ["if", "if not", "item", "bool", "assert", "async"])
def test_the_call_that_fails_raises_what_the_module_raises(form: str) -> None:
    eager = Checked(form)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    good, bad = torch.randn(2, 4), torch.full((2, 4), 1e6)
    model(good).backward()
    for _ in range(2):  # the second one by the native way
        with pytest.raises(Exception, match="too large") as found:
            model(bad)
        with pytest.raises(type(found.value)):
            eager(bad)
    torch.testing.assert_close(model(good), eager(good))
    assert len(model.report().exports) == 1


def test_an_error_that_the_module_catches_itself_is_no_error() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            try:
                if y.isnan().any():
                    raise ArithmeticError
            except ArithmeticError:
                y = self.layer(torch.nan_to_num(x))
            return y.sum()

    eager = Careful()
    model = ORTModule(copy.deepcopy(eager))
    for x in (torch.randn(2, 4), torch.full((2, 4), torch.nan), torch.randn(2, 4)):
        model.zero_grad()
        eager.zero_grad()
        got, want = model(x), eager(x)
        torch.testing.assert_close(got, want)
        got.backward()
        want.backward()
        assert_same_gradients(model, eager)


def test_a_branch_both_ways_of_which_go_on_is_no_check() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x).sum()
            return y * 2 if y > 0 else y

    model = ORTModule(Either())
    with pytest.warns(UserWarning, match="runs in PyTorch"):
        model(torch.randn(2, 4))
    assert model.report().fallback == "whole"


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_cumulative_statistics_are_part_of_the_graph(kind: Any) -> None:
    eager = nn.Sequential(kind(3, momentum=None), nn.Tanh())
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for size in (4, 6, 5, 2):
        x = torch.randn(size, 3, *[4] * (2 if kind is nn.BatchNorm2d else 0)) + size
        for one in (eager, model):
            one.zero_grad()
            one(x).square().sum().backward()
        assert_same_gradients(model, eager)
        for got, want in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(got, want)
    eager.eval()
    model.eval()
    torch.testing.assert_close(model(x), eager(x))
