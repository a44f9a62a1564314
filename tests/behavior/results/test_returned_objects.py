"""Python objects in a result: the program's own are the very same, what the forward makes is new at each call."""

from __future__ import annotations

import collections
import enum
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ortmodule import ORTModule


class Mode(enum.Enum):
    A = 1


class Plain:
    def __init__(self, k: Any) -> None:
        self.k = k


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: Any) -> None:
        self.k = k


class Returning(nn.Module):
    def __init__(self, result: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.result, self.own, self.last = nn.Linear(2, 2), result, Plain([1, 2]), None

    def forward(self, x: torch.Tensor, *further: Any) -> Any:
        return self.result(self, self.linear(x), *further)


def kept_and_returned(self: Any, y: torch.Tensor) -> Any:
    self.last = {"y": y}
    return y, self.last


def twice(self: Any, y: torch.Tensor) -> Any:
    made = [y]
    return made, made, {"again": made}


# Results, and how to tell two of them apart.
OWN: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "a list": lambda self, y: (y, self.own.k),
    "an object": lambda self, y: (y, self.own),
    "a layer": lambda self, y: (y, self.linear),
    "in a dict": lambda self, y: {"y": y, "own": self.own.k},
    "in a new object": lambda self, y: (y, Plain(self.own.k)),
    "a member": lambda self, y: (y, Mode.A),
    "a class": lambda self, y: (y, Plain),
}
MADE: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "a list": lambda self, y: (y, [1, [2]]),
    "a set": lambda self, y: (y, {1, 2}),
    "an object": lambda self, y: (y, Plain([1])),
    "an object with slots": lambda self, y: (y, Slotted([1])),
    "a namespace": lambda self, y: (y, types.SimpleNamespace(k=[1])),
    "an array": lambda self, y: (y, np.arange(3)),
    "a counter": lambda self, y: (y, collections.Counter("aab")),
    "a deque": lambda self, y: (y, collections.deque([1, 2], maxlen=2)),
    "a default dict": lambda self, y: (y, collections.defaultdict(list, a=[1])),
    "a shape": lambda self, y: (y, y.shape),
    "twice": twice,
    "kept as well": kept_and_returned,
}


def found_in(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value["own"]


@pytest.mark.parametrize("what", OWN)
def test_an_object_of_the_program_is_returned_itself(what: str) -> None:
    module = Returning(OWN[what])
    model = ORTModule(module)
    for step in range(6):
        if step in (2, 4):  # another one, the same in all that was read
            module.own = Plain([1, 2] if step == 2 else [3])
        wanted, got = found_in(module(torch.ones(3, 2))), found_in(model(torch.ones(3, 2)))
        if isinstance(wanted, Plain) and wanted is not module.own:
            wanted, got = wanted.k, got.k
        assert got is wanted
    assert model.report().fallback == "none"


def spoil(value: Any) -> None:
    """Changes whatever can be changed of a result."""
    if isinstance(value, dict):
        value["spoiled"] = 1
    elif isinstance(value, list | collections.deque):
        value.append(9)
    elif isinstance(value, set):
        value.add(99)
    elif isinstance(value, np.ndarray):
        value.fill(7)
    elif isinstance(value, Plain | Slotted | types.SimpleNamespace):
        value.k.append(5)


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple) and type(value) is tuple:
        same = [[a is b for a in value] for b in value]
        return same, [described(item) for item in value]
    if isinstance(value, Plain | Slotted | types.SimpleNamespace):
        return type(value), value.k
    if isinstance(value, dict):
        return type(value), {key: described(held) for key, held in value.items()}
    return type(value), repr(value) if not isinstance(value, list) else [described(item) for item in value]


@pytest.mark.parametrize("what", MADE)
def test_an_object_that_the_forward_makes_is_new_at_each_call(what: str) -> None:
    module = Returning(MADE[what])
    model = ORTModule(module)
    for _ in range(4):
        wanted, got = module(torch.ones(3, 2)), model(torch.ones(3, 2))
        assert described(got) == described(wanted)
        for item in got:
            spoil(item)
    assert model.report().fallback == "none"


def test_what_is_kept_on_the_module_is_what_is_returned() -> None:
    module = Returning(kept_and_returned)
    model = ORTModule(module)
    for _ in range(3):
        assert model(torch.ones(3, 2))[1] is module.last
    assert model.report().fallback == "none"


@pytest.mark.parametrize("given", [[1, 2], {"a": 1}, Plain(3)], ids=lambda one: type(one).__name__)
def test_an_argument_that_is_returned_is_the_callers_own(given: Any) -> None:
    model = ORTModule(Returning(lambda self, y, own: (y, own)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert model(torch.ones(3, 2), given)[1] is given


def a_list_in_itself(y: torch.Tensor) -> Any:
    made: list[Any] = [y]
    made.append((made,))
    return made


def an_object_in_itself(y: torch.Tensor) -> Any:
    made = Plain(y)
    made.again = {"a": [made]}  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("make", [a_list_in_itself, an_object_in_itself])
def test_what_holds_itself_is_made_by_pytorch(make: Callable[[torch.Tensor], Any]) -> None:
    model = ORTModule(Returning(lambda self, y: make(y)))
    with pytest.warns(UserWarning, match="holds itself"):
        model(torch.ones(3, 2))
    made = model(torch.ones(3, 2))
    assert made[1][0] is made if isinstance(made, list) else made.again["a"][0] is made


# Calls of the forward make another one each, which is more than an equal one: it may be written.
UNIQUE: dict[str, Callable[[], Any]] = {
    "generator": lambda: (i for i in range(3)),
    "function": lambda: lambda: 1,
    "class": lambda: type("C", (), {"k": True}),
    "class in a list": lambda: [type("C", (), {})],
    "object of a class": lambda: type("C", (), {})(),
    "enum": lambda: enum.Enum("Z", "A B").A,
    "module": lambda: types.ModuleType("of_a_call"),
    "method of a list": lambda: [].append,
    "generator of numbers": torch.Generator,
    "partial": lambda: functools.partial(max, 1),
    "view of an array": lambda: np.arange(6)[::2],
}


@pytest.mark.parametrize("make", UNIQUE.values(), ids=UNIQUE)
def test_what_cannot_be_made_again_is_made_by_pytorch(make: Callable[[], Any]) -> None:
    model = ORTModule(Returning(lambda self, y: (y, make())))
    with pytest.warns(UserWarning, match="cannot be made again"):
        model(torch.ones(3, 2))
    first, second = (model(torch.ones(3, 2))[1] for _ in range(2))
    first, second = (one[0] if isinstance(one, list) else one for one in (first, second))
    assert first is not second


def only_ones() -> dict[str, Any]:
    class Local:
        pass

    class LocalMode(enum.Enum):
        A = 1

    return {
        "class": Plain, "local class": Local, "of torch": nn.Linear, "built in": int, "enum": Mode.A,
        "local enum": LocalMode.A, "module": types, "new module": types.ModuleType("made_before"),
        "function in C": torch.relu, "dtype": torch.float16, "generator of numbers": torch.Generator(),
    }  # fmt: skip


@pytest.mark.parametrize("name", only_ones())
def test_what_was_there_before_is_handed_out_itself(name: str) -> None:
    one = only_ones()[name]
    model = ORTModule(Returning(lambda self, y: (y, one)))
    for _ in range(3):
        assert model(torch.ones(3, 2))[1] is one
    assert model.report().fallback == "none"
