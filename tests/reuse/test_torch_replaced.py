"""What a program puts in the place of torch's own functions, operators and methods is what runs from then on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ortmodule import Options, ORTModule
from tests.support import Lambda


def _tripled(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: original(*args, **kwargs) * torch.tensor(3.0)


# By what is replaced: its owner and name, what the forward computes. Not `__getitem__`: CPython takes a class that had
# one set and deleted for a sequence from then on, and torch.tensor asks whether its arguments are sequences.
REPLACED: dict[str, tuple[Any, str, Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "a function": (torch, "relu", lambda m, x: torch.relu(m.linear(x))),
    "a function of a layer": (F, "relu", lambda m, x: nn.ReLU()(m.linear(x))),
    "what a layer calls": (F, "linear", lambda m, x: m.linear(x)),
    "a layer's forward": (nn.Linear, "forward", lambda m, x: m.linear(x)),
    "a layer's call": (nn.Linear, "__call__", lambda m, x: m.linear(x)),
    "a method of tensors": (torch.Tensor, "relu", lambda m, x: m.linear(x).relu()),
    "an operator": (torch.Tensor, "__matmul__", lambda m, x: x @ m.linear.weight),
    "an operator from the right": (torch.Tensor, "__rsub__", lambda m, x: 3 - m.linear(x)),
    "a sign": (torch.Tensor, "__neg__", lambda m, x: -m.linear(x)),
}


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_runs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, forward = REPLACED[what]
    model, x = ORTModule(Lambda(forward)), torch.randn(3, 4)
    for _ in range(3):
        before = model(x)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of it runs in PyTorch
        patch.setattr(owner, name, _tripled(getattr(owner, name)))
        torch.testing.assert_close(model(x), model.module(x))
        torch.testing.assert_close(model(x), 3 * before)
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("name", ["__call__", "_call_impl", "__getattr__"])
def test_what_traces_replace_themselves_runs_in_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ORTModule(Lambda(lambda m, x: m.linear(x))), torch.randn(3, 4)
    for _ in range(3):
        before = model(x)
    original, calls = vars(nn.Module)[name], [0]

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls[0] += type(self) is nn.Linear
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, name, counted)
        with pytest.warns(UserWarning, match=f"nn.Module.{name} was replaced"):
            torch.testing.assert_close(model(x), before)
        assert calls[0] > 0
    torch.testing.assert_close(model(x), before)


@torch.fx.wrap
def wrapped_for_tracers(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def test_functions_that_symbolic_tracers_leave_whole_are_functions() -> None:
    model = ORTModule(Lambda(lambda m, x: wrapped_for_tracers(m.linear(x), 2.0)), options=Options(fallback="error"))
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), model.module.linear(x) * 2)
