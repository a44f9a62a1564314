"""Errors of operators: PyTorch's types, and forwards that catch them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from ortmodule.errors import LinearAlgebraError, ORTModuleError
from tests.support import assert_same_gradients

GOOD, BAD = torch.eye(3), -torch.eye(3)


class Factor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ torch.linalg.cholesky(a)


class Jittered(Factor):
    """Goes on where the decomposition fails."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        try:
            factor = torch.linalg.cholesky(a)
        except torch.linalg.LinAlgError:
            factor = torch.full_like(a, 7.0)
        return self.linear(x) @ factor


def test_a_matrix_without_a_factor_is_an_error_of_linear_algebra() -> None:
    ours = ORTModule(Factor())
    for a in (GOOD, BAD, GOOD, BAD):
        if a is GOOD:
            ours(torch.ones(2, 3), a).sum().backward()
        else:
            with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
                ours(torch.ones(2, 3), a)
    assert ours.report().fallback == "none"


def test_it_is_an_error_of_the_engine_where_nothing_may_run_in_pytorch() -> None:
    ours = ORTModule(Factor(), options=Options(fallback="error"))
    ours(torch.ones(2, 3), GOOD)
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        ours(torch.ones(2, 3), BAD)
    assert type(caught.value) is LinearAlgebraError and isinstance(caught.value, ORTModuleError)


@pytest.mark.filterwarnings("ignore:a call of Jittered ran in PyTorch")
def test_a_forward_that_catches_it_goes_on() -> None:
    eager = Jittered()
    ours = ORTModule(copy.deepcopy(eager))
    for a in (GOOD, BAD, GOOD, BAD):
        x = torch.randn(2, 3)
        got, want = ours(x, a), eager(x, a)
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        assert_same_gradients(ours, eager)
    assert ours.report().fallback == "none"


class Undifferentiable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shape = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.gammainc(self.shape, x)


def test_a_gradient_that_is_not_implemented() -> None:
    for module in (Undifferentiable(), ORTModule(Undifferentiable())):
        with pytest.raises(NotImplementedError, match="derivative for 'igamma: input' is not implemented"):
            module(torch.ones(3)).sum().backward()
