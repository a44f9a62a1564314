"""What the tests of ORTModule share: a module beside an eager copy of itself, and the comparison of the two."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn

from ortmodule import Options, ORTModule


class Lambda(nn.Module):
    """A linear layer of 4 features, a buffer, and a forward given as a function of (module, *args, **kwargs)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def mlp(width: int = 4) -> nn.Module:
    """Three layers with fixed weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 3))


def pair(module: nn.Module, **options: Any) -> tuple[ORTModule, nn.Module]:
    """`module` in ORTModule, where a fallback is an error, and an eager copy of it."""
    eager = copy.deepcopy(module)
    return ORTModule(module, options=Options(**{"fallback": "error", **options})), eager


def assert_same_gradients(model: nn.Module, eager: nn.Module, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Every parameter has a gradient in both or in none, and the two are close."""
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), f"the gradient of {name} is None in one of the two only"
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}.grad: {m}")


def exports(model: ORTModule) -> int:
    """How often the module was captured so far."""
    return len(model.report().exports)
