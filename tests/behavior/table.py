"""The table of behaviors: what a user of PyTorch does with a module, and what ORTModule must do there.

A row belongs to a group and checks one behavior. `parity` adds a row that compares ORTModule with eager, results and
gradients, over a few calls; `behavior` adds a row that is a function of its own. Each file of this folder fills some
groups and runs their rows; test_count.py counts them.

Not here: single operators against a formula (tests/ops), models (tests/models).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.module.test_inputs_outputs import assert_same_result, flat
from tests.support import Lambda, assert_same_gradients, exports

# Group -> (what it is about, how many rows it has at least).
GROUPS = {
    "A": ("forward signatures", 14),
    "B": ("input types", 17),
    "C": ("outputs", 16),
    "D": ("devices and dtypes", 8),
    "E": ("requires_grad", 10),
    "F": ("many modules", 8),
    "G": ("dynamic shapes", 6),
    "H": ("train and eval", 6),
    "I": ("nn.Module surface", 20),
    "J": ("options", 20),
    "K": ("operators", 45),
    "L": ("memory and passes", 5),
    "M": ("optimizers", 3),
    "N": ("autograd.Function", 31),
}


@dataclasses.dataclass(frozen=True)
class Row:
    group: str
    name: str
    check: Callable[..., None]


TABLE: list[Row] = []


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one call of a parity row."""
    return args, kwargs


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def parity(
    group: str, name: str, forward: Callable[..., Any] | nn.Module, *calls: tuple[tuple[Any, ...], dict[str, Any]],
    exports_at_most: int | None = None, fallback: str = "none", rtol: float = 1e-4, atol: float = 1e-5,
) -> None:  # fmt: skip
    """Adds a row: over the calls, results and gradients are eager's.

    Args:
        forward: a function of (module, *args, **kwargs) over a `Lambda`, or a module.
        calls: see `call`; a single one is made twice.
        exports_at_most: how many captures the calls may take.
        fallback: what the report says of a fallback afterwards.
    """

    def check() -> None:
        torch.manual_seed(0)
        eager = copy.deepcopy(forward) if isinstance(forward, nn.Module) else Lambda(forward)
        policy = "error" if fallback == "none" else "eager"
        model = ORTModule(copy.deepcopy(eager), options=Options(fallback=policy, dropout="torch"))
        for args, kwargs in calls if len(calls) > 1 else calls * 2:
            compare(model, eager, args, kwargs, rtol, atol)
        assert model.report().fallback == fallback
        if exports_at_most is not None:
            assert exports(model) <= exports_at_most, model.report()

    TABLE.append(Row(group, name, check))


def behavior(group: str, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the decorated function as a row; it may take `tmp_path`, `monkeypatch` and `caplog`."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        TABLE.append(Row(group, name, function))
        return function

    return add


def rows_of(groups: str) -> Sequence[Any]:
    """Rows of these groups, as parameters of a test."""
    return [pytest.param(row, id=f"{row.group}: {row.name}") for row in TABLE if row.group in groups]


def run(row: Row, request: pytest.FixtureRequest) -> None:
    """Runs a row with the fixtures that its function names."""
    wanted = [p.name for p in inspect.signature(row.check).parameters.values() if p.default is p.empty]
    row.check(**{name: request.getfixturevalue(name) for name in wanted})


def compare(
    model: nn.Module, eager: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:  # fmt: skip
    """One step of both: same results, same gradients of parameters and inputs, same values written into inputs."""
    results, inputs = [], []
    for module in (model, eager):
        a, k = copy.deepcopy((args, kwargs))
        module.zero_grad()
        torch.manual_seed(7)
        results.append(module(*a, **k))
        losses = [t.square().sum() for t in tensors(results[-1]) if t.requires_grad and t.grad_fn is not None]
        if losses:
            sum(losses).backward()  # type: ignore[union-attr]
        inputs.append(tensors((a, k)))
    assert_same_result(*results)
    for mine, wanted in zip(*(tensors(r) for r in results), strict=True):
        assert mine.requires_grad == wanted.requires_grad
    assert_same_gradients(model, eager, rtol, atol)
    for mine, wanted in zip(*inputs, strict=True):
        torch.testing.assert_close(mine, wanted)
        assert (mine.grad is None) == (wanted.grad is None)
        if wanted.grad is not None:
            torch.testing.assert_close(mine.grad, wanted.grad, rtol=rtol, atol=atol)
    for (name, mine), wanted in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, wanted, msg=lambda text, n=name: f"buffer {n}: {text}")


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested result, in order."""
    return [leaf for leaf in flat(value) if isinstance(leaf, torch.Tensor)]
