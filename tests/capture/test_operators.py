"""Every translated operator gives torch's value, dtype and gradient in the forms that models use, without ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from ortmodule.capture import capture
from ortmodule.capture.convert.ops import TRANSLATORS

from .operator_cases import CASES, HALF, i, r
from .parity import assert_valid, aten_nodes, call


class Operator(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


LEFT_TO_ATEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "boolean mask": (lambda x: torch.where(x > 0, x, 0)[torch.tensor([True, False, True])], (r(3, 4),)),
    "product scattered": (lambda x, j: x.scatter_reduce(0, j, x, "prod"), (r(4), i(4))),
    "reflected pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (r(2, 4),)),
    "fourier": (lambda x: torch.view_as_real(torch.fft.rfft(x)).sum(), (r(8),)),
    "complex numbers": (lambda x: torch.view_as_real(torch.exp(1j * x) * (2 - 1j) + 0.5j), (r(8),)),
    "interpolate by a third": (lambda x: F.interpolate(x, scale_factor=3.0, mode="nearest"), (r(1, 2, 3, 3),)),
    "linspace of half": (lambda x: x + torch.linspace(0, 1, 4, dtype=HALF), (r(4),)),
    "half range": (lambda x: x + torch.arange(4, dtype=HALF), (r(4, dtype=HALF),)),
    "scalar first": (lambda x: torch.heaviside(x.detach(), torch.tensor(0.5)), (r(4),)),
}


def check(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    def leaves() -> tuple[Any, ...]:
        return tuple(a.clone().requires_grad_(a.is_floating_point()) for a in args)

    module, mine, theirs = Operator(function), leaves(), leaves()
    captured = capture(module, mine)
    assert_valid(captured)
    torch.manual_seed(7)
    got = call(captured, module, mine)
    torch.manual_seed(7)
    expected = function(*theirs)
    got, expected = ([v] if isinstance(v, torch.Tensor) else list(v) for v in (got, expected))
    half = any(a.dtype == HALF for a in args)
    tolerance = dict(rtol=2e-2, atol=2e-2) if half else {}
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, **tolerance)
    for results in (got, expected):
        total = sum(v.double().sum() * (k + 1) for k, v in enumerate(results) if v.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
    for a, e in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, e.grad, **tolerance)
    return captured


@pytest.mark.parametrize("name", CASES)
def test_operator_is_translated(name: str) -> None:
    torch.manual_seed(0)
    assert not aten_nodes(check(*CASES[name]))


@pytest.mark.parametrize("name", LEFT_TO_ATEN)
def test_operator_without_a_translator_runs_through_aten(name: str) -> None:
    torch.manual_seed(0)
    assert aten_nodes(check(*LEFT_TO_ATEN[name]))


def test_every_translator_names_an_operator_of_torch() -> None:
    for name in TRANSLATORS:
        if "::" in name:  # of a library that may not be loaded
            continue
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name
