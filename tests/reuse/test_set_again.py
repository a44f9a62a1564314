"""What a forward sets to what is there already is set by later calls, too, once it is gone or another."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule


def function() -> None:
    """Holds an attribute."""


class Plain:
    """Holds one, and so do its objects."""


OBJECT, SPACE, MODULE, TABLE = Plain(), types.SimpleNamespace(), types.ModuleType("held"), dict[str, float]()


def sets_on_function(module: nn.Module) -> None:
    function.k = 5.0  # type: ignore[attr-defined]


def sets_on_object(module: nn.Module) -> None:
    OBJECT.k = 5.0  # type: ignore[attr-defined]


def sets_in_its_dict(module: nn.Module) -> None:
    vars(OBJECT)["k"] = 5.0


def sets_by_setattr(module: nn.Module) -> None:
    setattr(OBJECT, "k", 5.0)  # noqa: B010


def updates_its_dict(module: nn.Module) -> None:
    OBJECT.__dict__.update(k=5.0)


def sets_on_namespace(module: nn.Module) -> None:
    SPACE.k = 5.0


def sets_on_python_module(module: nn.Module) -> None:
    MODULE.k = 5.0  # type: ignore[attr-defined]


def sets_in_dictionary(module: nn.Module) -> None:
    TABLE["k"] = 5.0


def sets_on_itself(module: nn.Module) -> None:
    module.k = 5.0  # type: ignore[assignment]


def sets_on_layer(module: nn.Module) -> None:
    module.linear.k = 5.0  # type: ignore[union-attr]


HOLDERS: dict[Callable[[nn.Module], None], Callable[[nn.Module], Any]] = {
    sets_on_function: lambda module: vars(function),
    sets_on_object: lambda module: vars(OBJECT),
    sets_in_its_dict: lambda module: vars(OBJECT),
    sets_by_setattr: lambda module: vars(OBJECT),
    updates_its_dict: lambda module: vars(OBJECT),
    sets_on_namespace: lambda module: vars(SPACE),
    sets_on_python_module: lambda module: vars(MODULE),
    sets_in_dictionary: lambda module: TABLE,
    sets_on_itself: vars,
    sets_on_layer: lambda module: vars(module.linear),
}


class Net(nn.Module):
    def __init__(self, sets: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self.linear, self.sets = nn.Linear(4, 4), sets

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sets(self)
        return self.linear(x) * 2


@pytest.mark.parametrize("there", [False, True], ids=["absent at first", "there at first"])
@pytest.mark.parametrize("sets", HOLDERS, ids=lambda sets: sets.__name__)
def test_what_a_forward_sets_is_set_by_each_call(sets: Callable[[nn.Module], None], there: bool) -> None:
    module = Net(sets)
    held = HOLDERS[sets](module)
    held.pop("k", None)
    if there:
        sets(module)
    model = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a dictionary's entries are set in PyTorch
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(3, 4))
                assert held["k"] == 5.0
            del held["k"]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * len(Plain.__name__) * len(type(OBJECT).__qualname__)


@pytest.mark.parametrize("name", ["__name__", "__qualname__"])
def test_the_name_of_a_class_is_asked_at_each_call(name: str) -> None:
    eager = Named()
    model, x, was = ORTModule(eager), torch.ones(3, 4), getattr(Plain, name)
    try:
        for text in (was, was, "Longer than before", "Longer than before", was):
            setattr(Plain, name, text)
            torch.testing.assert_close(model(x), eager(x))
    finally:
        setattr(Plain, name, was)
    assert model.report().fallback == "none"
