"""A program around a module, run on ORTModule and on eager, and everything that it can observe of the two compared.

A scenario is a function of a module that yields what it sees: tensors, numbers, text, nested. It is run from the same
state on both sides, after a few plain steps that make ORTModule's call the steady one. What it raises is part of what
it sees: the type is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ortmodule import Options, ORTModule

from .table import rand

Scenario = Callable[[Any], Iterator[Any] | None]
# An engine's error may be of a kind of ORTModule's own where eager raises one of these.
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError)


class Net(nn.Module):
    """Two layers, a buffer that is read and one that is written."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.scale = nn.Buffer(torch.linspace(0.5, 1.5, 8))
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.calls.add_(1)
        return self.second(torch.tanh(self.first(x)) * self.scale)


def steps(module: nn.Module, count: int = 3, grad: bool = False) -> None:
    """Plain steps, which leave no gradients."""
    for _ in range(count):
        module(rand(5, 4).requires_grad_(grad)).square().sum().backward()
    module.zero_grad()


def observed(module: nn.Module, scenario: Scenario, warm: Callable[[Any], None] | None) -> list[Any]:
    """What the scenario sees, then the module's state; after an error without gradients, of which some may be there."""
    torch.manual_seed(5)
    seen: list[Any] = []
    if warm is not None:
        warm(module)
    try:
        seen.extend(copied(item) for item in scenario(module) or ())
    except _ERRORS as error:
        kind = next((k for k in _ERRORS if isinstance(error, k)), RuntimeError)
        seen.append(f"raised {kind.__name__}: {error}")
        module.zero_grad()
    return [*seen, state(module)]


def refused(seen: list[Any], words: str) -> bool:
    return any(isinstance(item, str) and item.startswith("raised ") and words in item for item in seen)


def state(module: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and gradients."""
    found: dict[str, Any] = {}
    for name, p in module.named_parameters():
        found[name] = p.detach().clone()
        found[f"{name}.grad"] = copied(p.grad)
    found.update((name, b.detach().clone()) for name, b in module.named_buffers())
    return found


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        kept = value.detach()
        return kept if kept.layout != torch.strided else kept.clone()
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def check(
    scenario: Scenario, make: Callable[[], nn.Module] = Net, warm: Callable[[Any], None] | None = steps,
    rtol: float = 1e-4, atol: float = 1e-5, refusal: str | None = None, **options: Any,
) -> ORTModule:  # fmt: skip
    """Asserts that the scenario sees the same on both sides, or ends in an error of ORTModule's with the words
    `refusal`; returns the model.
    """
    origin = make()
    eager = copy.deepcopy(origin)  # a copy too: a deep copy's tensors have been written once
    model = ORTModule(copy.deepcopy(origin), options=Options(**{"dropout": "torch", **options}))
    mine, wanted = observed(model, scenario, warm), observed(eager, scenario, warm)
    if refusal is None or not refused(mine, refusal):
        assert_same(mine, wanted, rtol, atol)
    return model


def assert_same(mine: Any, wanted: Any, rtol: float, atol: float, where: str = "seen") -> None:
    assert type(mine) is type(wanted) or isinstance(mine, (int, float)), f"{where}: {mine} where eager has {wanted}"
    if isinstance(wanted, torch.Tensor):
        assert mine.layout == wanted.layout, f"{where}: layout"
        torch.testing.assert_close(mine, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{where}: {m}")
    elif isinstance(wanted, list):
        assert len(mine) == len(wanted), f"{where}: {mine} where eager has {wanted}"
        for i, (one, other) in enumerate(zip(mine, wanted, strict=True)):
            assert_same(one, other, rtol, atol, f"{where}[{i}]")
    elif isinstance(wanted, dict):
        assert list(mine) == list(wanted), f"{where}: {list(mine)} where eager has {list(wanted)}"
        for key, other in wanted.items():
            assert_same(mine[key], other, rtol, atol, f"{where}.{key}")
    elif isinstance(wanted, str) and wanted.startswith("raised "):
        assert mine.split(":")[0] == wanted.split(":")[0], f"{where}: {mine} where eager has {wanted}"
    else:
        assert mine == wanted, f"{where}: {mine} where eager has {wanted}"
