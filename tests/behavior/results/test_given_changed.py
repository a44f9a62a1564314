"""What a forward changes of the lists, dicts and objects that it is given is changed as in eager, by the graph."""

from __future__ import annotations

import collections
import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule


class Layer:
    grows = True

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.is_ready = False

    def update(self, new: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            self.keys, self.is_ready = new[:0], True
        assert self.keys is not None
        self.keys = torch.cat([self.keys, new]) if self.grows else new * 2
        return self.keys


class Cache:
    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.kind = Layer
        self.dtype = torch.float32

    def update(self, at: int, new: torch.Tensor) -> torch.Tensor:
        while len(self.layers) <= at:
            self.layers.append(self.kind())
        return self.layers[at].update(new)


@dataclasses.dataclass
class Record:
    last: torch.Tensor
    note: str = "none"


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Cache) -> dict[str, Any]:
        y = self.first(x) + cache.update(0, x).mean(0)
        return {"y": self.second(y) + cache.update(1, y).sum(0), "cache": cache}


class Calling(nn.Module):
    """Does something to its argument."""

    def __init__(self, change: Callable[[torch.Tensor, Any], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(4, 4), change

    def forward(self, x: torch.Tensor, given: Any) -> Any:
        return self.change(self.layer(x), given)


def parts(value: Any, within: tuple[int, ...] = ()) -> Any:
    """What a value holds, tensors as lists, and of what class each container is."""
    if isinstance(value, torch.Tensor):
        return [round(number, 4) for number in value.flatten().tolist()], tuple(value.shape)
    if id(value) in within:
        return "what it is in"
    within = (*within, id(value))
    if isinstance(value, dict):
        return type(value), [(key, parts(one, within)) for key, one in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [parts(one, within) for one in value]
    has_parts = hasattr(value, "__dict__") and not isinstance(value, type)
    return (type(value), parts(vars(value), within)) if has_parts else value


def exports_of(model: Any) -> int:
    return len(model._manager.exports)


@torch.no_grad()
def test_a_cache_grows_on_one_graph_and_natively() -> None:
    torch.manual_seed(0)
    model = Decoder()
    wrapped = ORTModule(copy.deepcopy(model))
    eager_cache, cache = Cache(), Cache()
    for step in range(9):
        x = torch.randn(3 if step == 0 else 1, 4)
        expected, found = model(x, eager_cache), wrapped(x, cache)
        torch.testing.assert_close(found["y"], expected["y"])
        assert found["cache"] is cache
        assert parts(cache) == parts(eager_cache)
    assert wrapped.report().fallback == "none"
    assert exports_of(wrapped) == 2  # the first, which makes the layers, and one for a cache of any size
    assert sum(fast.runs for fast in wrapped._manager.fast_calls) == 7
    again = Cache()
    wrapped(torch.randn(3, 4), again)
    assert exports_of(wrapped) == 2 and len(again.layers) == 2


def append(y: torch.Tensor, given: list[Any]) -> torch.Tensor:
    given.append(y * 2)
    given.insert(0, "begun")
    return y


def moved(y: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    first = given.pop("a")
    given["b"] = y + first
    given["a"] = first
    given["n"] = None
    return y


def replaced(y: torch.Tensor, given: Record) -> torch.Tensor:
    given.last, given.note = y + given.last, "set"
    return y


def nested(y: torch.Tensor, given: dict[str, Any]) -> Any:
    given["inner"][0] = y
    given["inner"].append(given)
    return y, given["inner"]


def emptied(y: torch.Tensor, given: list[Any]) -> torch.Tensor:
    total = sum(given)
    given.clear()
    return y + total


def new_attribute(y: torch.Tensor, given: Record) -> Any:
    given.extra = [y, {"y": y * 2}]  # type: ignore[attr-defined]
    del given.note
    return given.extra, given  # type: ignore[attr-defined]


x = torch.ones(2, 4)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "list": (append, lambda: [x]),
    "list emptied": (emptied, lambda: [x, x * 2]),
    "deque": (lambda y, given: given.append(y * 2), lambda: collections.deque([x, x + 1], maxlen=2)),
    "dict": (moved, lambda: {"a": x, "b": x * 2}),
    "ordered dict": (moved, lambda: collections.OrderedDict(a=x, b=x * 2)),
    "default dict": (lambda y, given: given["k"].append(y), lambda: collections.defaultdict(list, a=x)),
    "dataclass": (replaced, lambda: Record(x)),
    "nested": (nested, lambda: {"inner": [x], "other": x}),
    "attribute": (new_attribute, lambda: Record(x)),
    "given twice": (lambda y, given: given[0].append(y), lambda: 2 * [[x]]),
}


@pytest.mark.parametrize("name", CASES)
def test_containers_are_changed_as_in_eager(name: str) -> None:
    change, make = CASES[name]
    model = Calling(change)
    wrapped = ORTModule(copy.deepcopy(model))
    for _ in range(4):
        expected, found = make(), make()
        with torch.no_grad():
            results = model(x, expected), wrapped(x, found)
        assert parts(results[1]) == parts(results[0])
        assert parts(found) == parts(expected)
    assert wrapped.report().fallback == "none", wrapped.report().fallback_reason


@torch.no_grad()
def test_a_result_is_the_container_that_was_given() -> None:
    wrapped = ORTModule(Calling(lambda y, given: (given, {"same": given, "y": y})))
    for _ in range(3):
        given = [x]
        result, held = wrapped(x, given)
        assert result is given and held["same"] is given
    assert wrapped.report().fallback == "none"


class Counter:
    def __init__(self, begin: float) -> None:
        self.count, self.last = begin, x


def counted(y: torch.Tensor, given: Counter) -> torch.Tensor:
    given.count += 1
    given.last = y
    return y * given.count if given.count < 6 else y


@torch.no_grad()
def test_whole_numbers_are_counted_on_one_graph() -> None:
    model = Calling(counted)
    wrapped = ORTModule(copy.deepcopy(model))
    expected, found = Counter(0), Counter(0)
    for _ in range(9):
        torch.testing.assert_close(wrapped(x, found), model(x, expected))
        assert type(found.count) is int and found.count == expected.count
    assert wrapped.report().fallback == "none"
    assert exports_of(wrapped) <= 4  # from 0, from 1, from any number below 5, from any above


@torch.no_grad()
def test_other_numbers_are_counted_in_pytorch() -> None:
    model = Calling(counted)
    wrapped = ORTModule(copy.deepcopy(model))
    expected, found = Counter(0.5), Counter(0.5)
    with pytest.warns(UserWarning, match="changes the number 'count'"):
        torch.testing.assert_close(wrapped(x, found), model(x, expected))
    for _ in range(3):
        torch.testing.assert_close(wrapped(x, found), model(x, expected))
    assert found.count == expected.count == 4.5


def test_with_gradients_the_call_runs_in_pytorch() -> None:
    model = Calling(append)
    wrapped = ORTModule(copy.deepcopy(model))
    given: list[Any] = [x]
    with pytest.warns(UserWarning, match="that it is given"):
        wrapped(x, given)
    given[-1].sum().backward()
    expected: list[Any] = [x]
    model(x, expected)
    expected[-1].sum().backward()
    torch.testing.assert_close(wrapped.layer.weight.grad, model.layer.weight.grad)


def test_a_graph_without_gradients_is_not_used_for_ones_that_want_them() -> None:
    wrapped = ORTModule(Calling(append))
    with torch.no_grad():
        wrapped(x, [x])
    given: list[Any] = [x]
    with warnings.catch_warnings(record=True):
        wrapped(x, given)
    assert given[-1].requires_grad
    with torch.no_grad():
        wrapped(x, given := [x])
    assert not given[-1].requires_grad and len(given) == 3


@torch.no_grad()
def test_the_class_of_a_given_object_is_watched() -> None:
    model = Decoder()
    wrapped = ORTModule(copy.deepcopy(model))
    caches = Cache(), Cache()
    try:
        for step in range(6):
            Layer.grows = step < 4
            new = torch.randn(2, 4)
            torch.testing.assert_close(wrapped(new, caches[1])["y"], model(new, caches[0])["y"])
            assert parts(caches[1]) == parts(caches[0])
    finally:
        Layer.grows = True


@torch.no_grad()
def test_classes_of_one_name_are_told_apart() -> None:
    def made(factor: float) -> Any:
        class Scale:
            def __init__(self) -> None:
                self.by = x

            def apply(self, y: torch.Tensor) -> torch.Tensor:
                self.by = self.by + factor
                return y * self.by

        return Scale()

    model = Calling(lambda y, given: given.apply(y))
    wrapped = ORTModule(copy.deepcopy(model))
    for factor in (1.0, 3.0, 1.0):
        torch.testing.assert_close(wrapped(x, made(factor)), model(x, made(factor)))


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept: Any = None

    def forward(self, x: torch.Tensor, given: list[Any]) -> torch.Tensor:
        self.kept = given
        given.append(x * 2)
        return self.layer(x)


@torch.no_grad()
def test_a_module_keeps_the_container_that_was_given() -> None:
    wrapped = ORTModule(Keeping())
    for _ in range(3):
        given: list[Any] = []
        wrapped(x, given)
        assert wrapped.kept is given and len(given) == 1
