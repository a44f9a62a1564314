"""A container of a call may be one that the forward reaches by itself, or stand in two places: all is as in eager."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from ortmodule import ORTModule


@dataclasses.dataclass
class Fields:
    k: float


class Named(NamedTuple):
    k: float


MAKERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"k": 1.0},
    "list": lambda: [1.0],
    "ordered dict": lambda: collections.OrderedDict(k=1.0),
    "dataclass": lambda: Fields(1.0),
    "named tuple": lambda: Named(1.0),
    "dict of a list": lambda: {"k": [1.0]},
}
HELD: dict[str, Any] = {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)


class IsGlobal(Net):
    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        return self.linear(x) * (2.0 if given is HELD["it"] else 3.0)


class InnerIsGlobal(Net):
    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        return self.linear(x) * (2.0 if given["k"] is HELD["it"]["k"] else 3.0)


class AreOne(Net):
    def forward(self, x: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
        return self.linear(x) * (2.0 if a is b else 3.0)


def results(model: nn.Module, calls: list[Callable[[], tuple[Any, ...]]]) -> list[torch.Tensor]:
    x = torch.ones(2, 4)
    found = []
    for call in calls:
        y = model(x, *call())
        y.sum().backward()
        found.append(y.detach())
    return found


def compare(module: type[nn.Module], calls: list[Callable[[], tuple[Any, ...]]]) -> ORTModule:
    model = ORTModule(module())
    pairs = list(zip(results(module(), calls), results(model, calls), strict=True))
    for call, (a, b) in enumerate(pairs):
        torch.testing.assert_close(a, b, msg=lambda text, call=call: f"call {call}: {text}")
    return model


ORDERS = ("ooovvvooo", "vvvooovvv", "ovovovovov")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore:.*runs? in PyTorch")
def test_an_argument_is_a_global_or_an_equal_one(kind: str, order: str) -> None:
    make = MAKERS[kind]
    HELD["it"] = make()
    model = compare(IsGlobal, [(lambda: (HELD["it"],)) if c == "v" else (lambda: (make(),)) for c in order])
    assert sum(one.runs for one in model.report().sessions) >= (order[0] == "o")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.filterwarnings("ignore:.*runs? in PyTorch")
def test_what_an_argument_holds_is_what_a_global_holds(order: str) -> None:
    HELD["it"] = {"k": [1.0]}
    compare(
        InnerIsGlobal, [(lambda: ({"k": HELD["it"]["k"]},)) if c == "v" else (lambda: ({"k": [1.0]},)) for c in order]
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [*MAKERS, "tuple of a tensor"])
def test_two_arguments_are_one_or_two(kind: str, order: str) -> None:
    one = torch.ones(4)
    make = MAKERS.get(kind, lambda: (one,))
    first = make()
    model = compare(AreOne, [(lambda: (first, first)) if c == "v" else (lambda: (first, make())) for c in order])
    report = model.report()
    assert len(report.exports) == 2 and report.fallback == "none"


def test_the_same_list_twice_does_not_shift_what_follows() -> None:
    class Sum(Net):
        def forward(self, a: list[float], b: list[float], x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * sum(a) + sum(b)

    values = [1.0, 2.0, 3.0]
    expected, model = Sum(), ORTModule(Sum())
    for _ in range(4):
        x = torch.randn(2, 4)
        torch.testing.assert_close(model(values, values, x), expected(values, values, x))


def test_a_list_that_holds_itself_runs_in_pytorch() -> None:
    given: list[Any] = [1.0]
    given.append(given)
    HELD["it"] = None
    with pytest.warns(UserWarning, match="holds itself"):
        compare(IsGlobal, [lambda: (given,)] * 3)
