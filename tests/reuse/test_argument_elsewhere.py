"""A forward that sets something on an object which it is also given: as in eager, however the object is taken apart."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule


@dataclasses.dataclass
class Fields:
    k: float


@dataclasses.dataclass(slots=True)
class Slots:
    k: float


class Plain:
    def __init__(self, k: float) -> None:
        self.k = k


MAKERS: dict[str, Callable[[float], Any]] = {
    "dataclass": Fields,
    "dataclass with slots": Slots,
    "object": Plain,
    "dict": lambda v: {"k": v},
    "ordered dict": lambda v: collections.OrderedDict(k=v),
    "list": lambda v: [v],
}
HELD: dict[str, Any] = {}


def put(holder: Any, value: float) -> None:
    if isinstance(holder, list):
        holder[0] = value
    elif isinstance(holder, dict):
        holder["k"] = value
    else:
        holder.k = value


def got(holder: Any) -> float:
    return holder[0] if isinstance(holder, list) else holder["k"] if isinstance(holder, dict) else holder.k


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, given: Any) -> torch.Tensor:
        y = self.linear(x)
        put(HELD["it"], 3.0)
        return y * got(given)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_set_on_another_way_is_seen_on_the_argument(kind: str) -> None:
    results = []
    for model in (Net(), ORTModule(Net())):
        found = []
        for call in range(6):
            HELD["it"] = MAKERS[kind](3.0 if call < 3 else 5.0)
            y = model(torch.ones(1, 4), given=HELD["it"])
            y.sum().backward()
            found.append((y.detach(), got(HELD["it"])))
        results.append(found)
    for (a, left_a), (b, left_b) in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
        assert left_a == left_b == 3.0
