"""Objects that a call is given, or a cache gives: what the forward reads of them counts, whatever they are equal to."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import typing
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule

KIND = typing.TypeVar("KIND")


class Slots:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k


class EqualToAll(Slots):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class NoHash(Slots):
    __slots__ = ("__dict__",)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoHash) and self.k == other.k

    __hash__ = None  # type: ignore[assignment]


class Caller:
    def __init__(self, k: Any) -> None:
        self.k = k

    def __call__(self) -> Any:
        return self.k


class Text(str):
    k = 2.0


class Numbers(list[float]):
    k = 2.0


class Scaled(nn.Module):
    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read = read

    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        return self.linear(x) * self.read(given)


def put(value: float) -> Callable[[Any], object]:
    return lambda given: setattr(given, "k", value)


ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], object]]] = {
    "slots": (lambda: Slots(2.0), lambda g: g.k, put(5.0)),
    "equal to all": (lambda: EqualToAll(2.0), lambda g: g.k, put(5.0)),
    "in an object": (lambda: Caller(Slots(2.0)), lambda g: g.k.k, lambda g: put(5.0)(g.k)),
    "slots, no hash": (lambda: NoHash(2.0), lambda g: g.k, put(5.0)),
    "slots in an object, no hash": (lambda: Caller(NoHash(2.0)), lambda g: g.k.k, lambda g: put(5.0)(g.k)),
    "bytes that change": (lambda: Caller([bytearray(b"a")]), lambda g: float(len(g.k[0])), lambda g: g.k[0].append(1)),
    "callable": (lambda: Caller(2.0), lambda g: g(), put(5.0)),
    "method": (lambda: Caller(2.0).__call__, lambda g: g(), lambda g: put(5.0)(g.__self__)),
    "partial": (lambda: functools.partial(Caller.__call__, Caller(2.0)), lambda g: g(), lambda g: put(5.0)(g.args[0])),
    "attribute of a string": (lambda: Text("a"), lambda g: g.k, put(5.0)),
    "attribute of a list": (lambda: Numbers([1.0]), lambda g: g.k, put(5.0)),
    "number that is written otherwise": (
        lambda: Caller(Decimal("2")), lambda g: float(len(str(g.k))), lambda g: setattr(g, "k", Decimal("2.0")),
    ),
    "slice": (
        lambda: Caller(slice(0, 1)), lambda g: float(sum([2.0, 3.0][g.k])), lambda g: setattr(g, "k", slice(0, None)),
    ),
    "order of a set": (lambda: Caller({8, 0}), lambda g: float(next(iter(g.k))), lambda g: setattr(g, "k", {0, 8})),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_object_that_is_given_counts_as_it_is(name: str) -> None:
    make, read, change = ARGUMENTS[name]
    module, given, x = Scaled(read), make(), torch.ones(2, 4)
    wrapped = ORTModule(module)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x, given), module(x, given))
    change(given)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x, given), module(x, given))
    assert sum(report.runs for report in wrapped.report().sessions) == 4


def test_equal_objects_share_a_graph() -> None:
    wrapped, x = ORTModule(Scaled(lambda given: given.k)), torch.ones(2, 4)
    for _ in range(3):
        wrapped(x, EqualToAll(2.0))
    assert len(wrapped.report().exports) == 1


@pytest.mark.parametrize("make", [Slots, lambda k: functools.partial(Caller.__call__, Caller(k)), Caller, NoHash])
def test_another_object_counts_as_it_is(make: Callable[[float], Any]) -> None:
    module = Scaled(lambda given: given() if callable(given) else given.k)
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    for value in (2.0, 5.0, 5.0):
        given = make(value)
        torch.testing.assert_close(wrapped(x, given), module(x, given))
    assert sum(report.runs for report in wrapped.report().sessions) == 3


class Kept:
    def __init__(self) -> None:
        self.k = 2.0


def test_object_that_a_cache_gives_counts_as_it_is() -> None:
    kept = Kept()

    @functools.lru_cache
    def get() -> Kept:
        return kept

    module, x = Scaled(lambda given: get().k), torch.ones(2, 4)
    wrapped = ORTModule(module)
    for value in (2.0, 2.0, 5.0, 5.0, 2.0, 7.0):
        kept.k = value
        torch.testing.assert_close(wrapped(x, None), module.linear(x) * value)


def test_cache_of_the_standard_library_is_no_state() -> None:
    module, x = Scaled(lambda given: 2.0 if fnmatch._compile_pattern("a*")("ab") else 3.0), torch.ones(2, 4)
    wrapped = ORTModule(module, options=Options(fallback="error"))
    for text in ("b*", "c*", "d*"):
        torch.testing.assert_close(wrapped(x, None), module(x, None))
        fnmatch.fnmatchcase("b", text)
    assert len(wrapped.report().exports) == 1


def test_type_variable_counts_as_what_it_is() -> None:
    module, x = Scaled(lambda given: 2.0 if given is KIND else 3.0), torch.ones(2, 4)
    wrapped = ORTModule(module, options=Options(fallback="error"))
    for _ in range(2):
        torch.testing.assert_close(wrapped(x, None), module(x, None))


@dataclasses.dataclass
class Fields:
    k: float


@pytest.mark.filterwarnings("ignore:Scaled runs in PyTorch")
def test_dataclass_that_has_lost_a_field_counts_as_it_is() -> None:
    module, given, x = Scaled(lambda given: getattr(given, "k", 5.0)), Fields(2.0), torch.ones(2, 4)
    wrapped = ORTModule(module)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x, given), module(x, given))
    del given.k
    torch.testing.assert_close(wrapped(x, given), module(x, given))
    given.k = 3.0
    torch.testing.assert_close(wrapped(x, given), module(x, given))
