"""A steady call looks at nothing that CPython tells changes of, and nothing is watched longer than a graph needs it.

Not here: that changes are seen (test_watching.py).
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import _C, ORTModule
from tests.reuse.test_watching import Net, exit_code, steady

WATCHES = sys.version_info >= (3, 12)


class Deep(nn.Module):
    """`modules` sub-modules, each with `names` attributes that the forward reads."""

    def __init__(self, modules: int, names: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Identity() for _ in range(modules))
        for part in self.parts:
            for i in range(names):
                setattr(part, f"value{i}", 1.0)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for part in self.parts:
            total += sum(value for name, value in vars(part).items() if name.startswith("value"))
        return x * self.scale * total


def compared(modules: int, names: int, change: Callable[[Deep], Any] | None = None) -> int:
    x = torch.randn(2)
    model, fast = steady(Deep(modules, names), x)
    if change is not None:
        change(model.module)
    before = fast.compared
    assert fast.matches((x,), {})
    return int(fast.compared - before)


def test_a_steady_call_compares_no_names() -> None:
    compared(5, 2)  # the first capture of a process finds things that later ones do not
    few, many = compared(5, 2), compared(5, 40)
    assert few == many
    assert compared(25, 2) - few <= 20 * (1 if WATCHES else 8)  # its class; 3.11: and the lengths of its tables


def test_a_change_costs_the_look_at_one_dict() -> None:
    steady_call = compared(20, 20)
    assert compared(20, 20, lambda m: setattr(m.parts[3], "value1", 1.0 * 1)) - steady_call < 100


@pytest.mark.skipif(not WATCHES, reason="3.11 has no watchers")
def test_without_a_free_id_everything_is_compared() -> None:
    program = """
    import ctypes
    import torch  # takes an id for itself
    callback = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p)  # does nothing, and returns 0
    for kind in ("Dict", "Function"):
        try:
            while True:
                getattr(ctypes.pythonapi, f"Py{kind}_AddWatcher")(callback)
        except RuntimeError:
            pass
    from ortmodule import _C
    from tests.reuse import test_watching as t
    x = torch.randn(2, 4)
    for change in t.CHANGES.values():
        model, fast = t.steady(t.Net(), x)
        assert _C.watched_objects() == 0
        change(model.module)
        assert not fast.matches((x,), {}), change
    """
    assert exit_code(program) == (0, "")


def test_watching_ends_with_the_graph() -> None:
    gc.collect()
    before = _C.watched_objects()
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    module = model.module
    assert (_C.watched_objects() > before) == WATCHES
    del model, fast
    gc.collect()
    assert _C.watched_objects() == before
    module.alpha = 2.0
    module.settings.rate = 0.5


def test_watching_ends_when_the_graph_is_part_of_a_cycle() -> None:
    gc.collect()
    before = _C.watched_objects()
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    model.module.settings.owner = model
    assert fast.matches((x,), {})
    alive = weakref.ref(model)
    del model, fast
    gc.collect()
    assert alive() is None
    assert _C.watched_objects() == before


def test_two_graphs_watch_the_same_objects() -> None:
    x = torch.randn(2, 4)
    module = Net()
    first, first_fast = steady(module, x)
    second, second_fast = steady(module, x)
    del first, first_fast
    gc.collect()
    assert second_fast.matches((x,), {})
    module.alpha = 5.0
    assert not second_fast.matches((x,), {})
    del second


class Rebuilt(nn.Module):
    """Its forward makes a list anew for each item that it adds."""

    def __init__(self, items: int) -> None:
        super().__init__()
        self.items = items
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        longest: list[float] = functools.reduce(lambda a, b: [*a, b], [float(i) for i in range(self.items)], [])
        return x * self.scale * longest[-1]


def test_what_a_capture_follows_ends() -> None:
    x = torch.randn(4)
    few, many = ORTModule(Rebuilt(40)), ORTModule(Rebuilt(5000))
    assert torch.equal(few(x), x * 39)
    with pytest.warns(UserWarning, match="too much to follow"):
        assert torch.equal(many(x), x * 4999)
    assert few.report().fallback == "none"
