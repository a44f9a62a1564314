"""What a forward changes is changed once for each call, also where its trace fails after the change."""

from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ortmodule import ORTModule


class Base:
    count = 0


class Derived(Base):
    pass


class Slotted:
    __slots__ = ("k",)


class World:
    """What a forward may change; a new one for each run."""

    def __init__(self) -> None:
        self.items: list[Any] = [[1], 2]
        self.generator, self.array = random.Random(3), np.zeros(2)
        self.slotted, self.k, self.cells, self.shared = Slotted(), 1, counting(), counting_and_reading()
        self.plain = types.SimpleNamespace(k=1)
        Base.count = 0
        Derived.__dict__.get("count") is not None and delattr(Derived, "count")
        counted.__defaults__ = ([],)


def counting() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def counting_and_reading() -> Callable[[], int]:
    """A variable that two functions share, of which one is made, and met, after the other has written it."""
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1

        def read() -> int:
            return calls

        return read()

    return count


def counted(seen: list[int] = []) -> int:  # noqa: B006
    seen.append(1)
    return len(seen)


def a_list_and_what_was_in_it(w: World) -> None:
    inner = w.items[0]
    w.items.append(1)
    inner.append(2)


def what_was_taken_out(w: World) -> None:
    inner = w.items.pop(0)
    inner.append(3)
    w.items.insert(0, [len(inner)])


def a_member_of_a_base(w: World) -> None:
    Base.count += 1
    w.k = Derived.count


def a_computed_name(w: World) -> None:
    for name in ("one", "two"):
        setattr(w, f"{name}_{len(vars(w))}", 5)


def an_empty_slot(w: World) -> None:
    w.slotted.k = getattr(w.slotted, "k", 0) + 1


def an_order(w: World) -> None:
    del w.k
    w.k = 1


def a_cell(w: World) -> None:
    w.cells()


def a_shared_cell(w: World) -> None:
    w.k = w.shared()


def a_default(w: World) -> None:
    counted()


def other_defaults(w: World) -> None:
    counted.__defaults__ = ([counted()],)


def an_array(w: World) -> None:
    w.array[0] += 1


def draws_of_an_object(w: World) -> None:
    w.generator.random()


def increased(plain: types.SimpleNamespace) -> None:
    plain.k = plain.k + 1


def looked_up(plain: types.SimpleNamespace, name: str) -> object:
    return getattr(plain, "".join(reversed(name)))


def an_attribute_before_all_are_looked_up(w: World) -> None:
    """The object is met before the change, its `__dict__` after it."""
    increased(w.plain)
    looked_up(w.plain, "k")


CHANGES = [
    a_list_and_what_was_in_it, what_was_taken_out, a_member_of_a_base, a_computed_name, an_empty_slot, an_order, a_cell,
    a_shared_cell, a_default, other_defaults, an_array, draws_of_an_object, an_attribute_before_all_are_looked_up,
]  # fmt: skip
# What ends a trace after the change.
ENDS: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda y: None,
    "a draw": lambda y: random.random(),
    "a left mode": lambda y: torch.set_grad_enabled(False),
    "a branch on data": lambda y: bool(y.sum() > 0),
}


def state_of(w: World) -> tuple[Any, ...]:
    held = {name: repr(value) for name, value in vars(w).items() if isinstance(value, int | list | np.ndarray)}
    member = vars(Derived).get("count")
    return (
        held,
        w.plain.k,
        w.generator.getstate(),
        getattr(w.slotted, "k", None),
        Base.count,
        member,
        repr(counted.__defaults__),
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_made_once_for_each_call(change: Callable[[World], None], end: str) -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.world = nn.Linear(2, 2), World()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            change(self.world)
            ENDS[end](y)
            return y

    found = []
    for make in (Changing, lambda: ORTModule(Changing())):
        module = make()
        states = []
        for size in (2, 2, 3, 2):
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")
                module(torch.ones(size, 2))
            states.append(state_of(module.world))
        found.append(states)
    assert found[1] == found[0]


def test_what_a_custom_function_changes_in_its_forward_is_changed_once() -> None:
    calls: list[int] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    class Calling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Twice.apply(x)

    model = ORTModule(Calling())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in (1, 2, 3):
            model(torch.ones(2, requires_grad=True)).sum().backward()
            assert len(calls) == count


@pytest.mark.parametrize("asked", ["requires_grad", "is_leaf", "grad_fn"])
def test_a_forward_may_ask_what_autograd_knows_of_a_custom_functions_result(asked: str) -> None:
    class Thrice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 3

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = Thrice.apply(self.linear(x))
            return y * (2 if getattr(y, asked) else 5)

    module = Asking()
    model = ORTModule(module)
    x = torch.ones(3, 2)
    for context in (torch.enable_grad, torch.no_grad, torch.enable_grad):
        with context():
            torch.testing.assert_close(model(x), module(x))
    assert model.report().fallback == "none"


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "determinism": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda v: torch._C._set_deterministic_algorithms(v[0], warn_only=v[1]),
    ),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "attention": (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda v: torch.set_autocast_enabled("cpu", v)),
    "warnings": (torch.is_warn_always_enabled, torch.set_warn_always),
    "printing": (lambda: torch._tensor_str.PRINT_OPTS.precision, lambda v: torch.set_printoptions(precision=v)),
}
OTHERS = {"determinism": (True, True), "dtype": torch.float64, "threads": 3, "precision": "medium", "printing": 7}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_torch_that_a_forward_leaves_changed(setting: str) -> None:
    """It asks for it as well: what it finds is what the caller has set, at each call."""
    tell, give = SETTINGS[setting]
    before = tell()
    other = OTHERS.get(setting, not before)

    class Leaving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * (2 if tell() == before else 3)
            give(other)
            return y

    model = Leaving()
    fast = ORTModule(model)
    x = torch.ones(2, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for held in (before, before, other, before, other):
                results = []
                for module in (model, fast):
                    give(held)
                    results.append(module(x))
                    assert tell() == other
                    give(before)
                torch.testing.assert_close(*results)
    finally:
        give(before)


def test_a_setting_that_is_given_back_is_in_the_graph() -> None:
    class Within(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            y = self.linear(x)
            torch.set_num_threads(threads)
            return y

    model = ORTModule(Within())
    model(torch.ones(2, 2))
    assert model.report().fallback == "none"
