"""What a forward looks up by a name that it puts together, however it came by `getattr`: all that it can lead to
counts, and what is not there.

Not here: names that are spelled out (test_stale_graphs.py).
"""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.reuse import names_of_a_module as other
from tests.support import Lambda

HERE = sys.modules[__name__]
by_name, has_name, names_of, listed, scope_of = getattr, hasattr, vars, dir, globals
NAME = ["SC", "ALE"]  # the forward joins it


class Held:
    """An object, and with `SCALE` on the class what is found there."""


class Meta(type):
    """A class of a class."""


class OfMeta(metaclass=Meta):
    """One of its classes."""


class Base(nn.Module):
    """Of the module under test."""


class Net(Base):
    def __init__(self, look: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.look = look

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.look(self)


HELD, SIMPLE, LOCAL = Held(), types.SimpleNamespace(), threading.local()
FIND = operator.attrgetter("".join(NAME))


def helper() -> None:
    """A function with attributes."""


def _first(tables: Any, name: str) -> float:
    return next((table[name] for table in tables if name in table), 1.0)


# By what is looked at: how, and where the name comes to be.
LOOKS: dict[str, tuple[Callable[[Any], float], Callable[[Any], Any]]] = {
    "attribute": (lambda m: getattr(m, "".join(NAME), 1.0), lambda m: m),
    "attribute of the class": (lambda m: getattr(m, "".join(NAME), 1.0), lambda m: Net),
    "attribute of a base": (lambda m: getattr(m, "".join(NAME), 1.0), lambda m: Base),
    "attribute of nn.Module": (lambda m: getattr(m, "".join(NAME), 1.0), lambda m: nn.Module),
    "class": (lambda m: getattr(Held, "".join(NAME), 1.0), lambda m: Held),
    "class's class": (lambda m: getattr(OfMeta, "".join(NAME), 1.0), lambda m: Meta),
    "table of a class": (lambda m: vars(Held).get("".join(NAME), 1.0), lambda m: Held),
    "tables of the bases": (lambda m: _first(map(vars, type(m).__mro__), "".join(NAME)), lambda m: Base),
    "hasattr": (lambda m: 2.0 if hasattr(Held, "".join(NAME)) else 1.0, lambda m: Held),
    "dir": (lambda m: 1.0 + len([name for name in dir(Held) if name.startswith("SC")]), lambda m: Held),
    "object": (lambda m: getattr(HELD, "".join(NAME), 1.0), lambda m: HELD),
    "namespace": (lambda m: getattr(SIMPLE, "".join(NAME), 1.0), lambda m: SIMPLE),
    "thread-local object": (lambda m: getattr(LOCAL, "".join(NAME), 1.0), lambda m: LOCAL),
    "function": (lambda m: getattr(helper, "".join(NAME), 1.0), lambda m: helper),
    "table of a function": (lambda m: helper.__dict__.get("".join(NAME), 1.0), lambda m: helper),
    "module": (lambda m: getattr(other, "".join(NAME), 1.0), lambda m: other),
    "builtins": (lambda m: getattr(builtins, "".join(NAME), 1.0), lambda m: builtins),
    "globals": (lambda m: globals().get("".join(NAME), 1.0), lambda m: HERE),
    "names of the globals": (lambda m: 1.0 + len([n for n in globals() if n.startswith("SC")]), lambda m: HERE),
    "module by its name": (lambda m: getattr(sys.modules[__name__], "".join(NAME), 1.0), lambda m: HERE),
    "globals of a function": (lambda m: helper.__globals__.get("".join(NAME), 1.0), lambda m: HERE),
    "eval": (lambda m: eval("".join(NAME) + " if '" + "".join(NAME) + "' in globals() else 1.0"), lambda m: HERE),
    "attrgetter": (lambda m: operator.attrgetter("".join(NAME))(other) if "".join(NAME) in vars(other) else 1.0,
        lambda m: other),
    "another name of getattr": (lambda m: by_name(HELD, "".join(NAME), 1.0), lambda m: HELD),
    "another name of hasattr": (lambda m: 2.0 if has_name(HELD, "".join(NAME)) else 1.0, lambda m: HELD),
    "another name of vars": (lambda m: names_of(HELD).get("".join(NAME), 1.0), lambda m: HELD),
    "another name of dir": (lambda m: 2.0 if "".join(NAME) in listed(HELD) else 1.0, lambda m: HELD),
    "another name of globals": (lambda m: scope_of().get("".join(NAME), 1.0), lambda m: HERE),
    "getattr as a default": (lambda m, get=getattr: get(HELD, "".join(NAME), 1.0), lambda m: HELD),
    "getattr that is given": (lambda m: _given(getattr, HELD), lambda m: HELD),
    "partial of getattr": (lambda m: functools.partial(by_name, HELD)("".join(NAME), 1.0), lambda m: HELD),
    "map of getattr": (lambda m: next(map(by_name, [HELD], ["".join(NAME)], [1.0])), lambda m: HELD),
    "attrgetter that was made before": (lambda m: FIND(HELD) if has_name(HELD, "".join(NAME)) else 1.0, lambda m: HELD),
    "getattr in a table": (lambda m: m.tools["get"](HELD, "".join(NAME), 1.0), lambda m: HELD),
}  # fmt: skip


def _given(get: Callable[..., float], value: Any) -> float:
    return get(value, "".join(NAME), 1.0)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    places = (Held, Meta, Base, Net, HELD, SIMPLE, LOCAL, helper, other, builtins, HERE, nn.Module)
    yield
    for place in places:
        if "SCALE" in vars(place):
            delattr(place, "SCALE")


def steady(look: Callable[[Any], float], **options: Any) -> tuple[ORTModule, torch.Tensor]:
    module = Net(look)
    module.tools = {"get": getattr}
    model, x = ORTModule(module, options=Options(fallback="error", **options)), torch.randn(3, 4)
    for _ in range(3):
        model(x)
    return model, x


@pytest.mark.parametrize("look", LOOKS)
def test_a_name_that_comes_later_is_found(look: str) -> None:
    how, where = LOOKS[look]
    model, x = steady(how)
    before = model(x)
    where(model.module).SCALE = 3.0
    after = model(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, model.module(x))


@pytest.mark.parametrize("look", LOOKS)
def test_a_value_that_changes_is_found(look: str) -> None:
    how, where = LOOKS[look]
    place = where(None) if where(None) is not None else None
    if place is not None:
        place.SCALE = 2.0
    model, x = steady(how)
    if place is None:
        place = model.module
    assert len(model.report().exports) == 1
    place.SCALE = 5.0
    torch.testing.assert_close(model(x), model.module(x))
    del place.SCALE
    torch.testing.assert_close(model(x), model.module(x))


class Asking(Net):
    """Asks its argument and a parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * getattr(x, "".join(NAME), 1.0) * getattr(self.linear.weight, "".join(NAME), 1.0)


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
@pytest.mark.parametrize("of", ["a parameter", "an argument"])
def test_an_attribute_that_a_tensor_gets_is_found(of: str) -> None:
    model, x = ORTModule(Asking(lambda m: 1.0)), torch.randn(3, 4)
    for _ in range(3):
        model(x)
    assert len(model.report().exports) == 1
    other_x = x.clone()
    (other_x if of == "an argument" else model.module.linear.weight).SCALE = 3.0  # type: ignore[attr-defined]
    torch.testing.assert_close(model(other_x), model.module(other_x))
    torch.testing.assert_close(model(x), model.module(x))


def test_a_builtin_name_that_a_global_hides_is_found() -> None:
    def look(module: Any) -> float:
        return float(scale_of_all) * len(globals()["NAME"])  # type: ignore[name-defined]  # noqa: F821

    builtins.scale_of_all = 2.0  # type: ignore[attr-defined]
    try:
        model, x = steady(look)
        globals()["scale_of_all"] = 3.0
        torch.testing.assert_close(model(x), model.module(x))
    finally:
        del builtins.scale_of_all  # type: ignore[attr-defined]
        globals().pop("scale_of_all", None)


def test_a_method_called_eval_is_no_look_at_the_globals() -> None:
    module = Net(lambda m: m.tools.eval())
    module.tools = types.SimpleNamespace(eval=lambda: 2.0)
    model, x = ORTModule(module, options=Options(fallback="error")), torch.randn(3, 4)
    for i in range(3):
        globals()["LATER"] = i
        model(x)
    del globals()["LATER"]
    assert len(model.report().exports) == 1


@pytest.mark.parametrize("look", ["attribute of the class", "object", "function", "module", "class"])
def test_the_disk_cache_gives_no_graph_where_a_name_has_come(look: str, tmp_path: Any) -> None:
    how, where = LOOKS[look]
    first, _ = steady(how, cache_dir=str(tmp_path))
    again, x = steady(how, cache_dir=str(tmp_path))
    where(again.module).SCALE = 3.0
    torch.testing.assert_close(again(x), again.module(x))
    assert [model.report().exports[0].cached for model in (first, again)] == [False, True]
    later, x = steady(how, cache_dir=str(tmp_path))
    torch.testing.assert_close(later(x), later.module(x))


def _read_of(module: str) -> Callable[[Any], float]:
    return lambda m: getattr(other, "".join(reversed(module))).alpha


@pytest.mark.parametrize("held", ["a module that was imported", "a module that was made", "a function"])
def test_what_a_module_found_by_name_in_another_has_counts(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = helper if held == "a function" else types.ModuleType("found_by_name")
    if held == "a module that was imported":
        monkeypatch.setitem(sys.modules, "found_by_name", found)
    monkeypatch.setattr(other, "found", found, raising=False)
    monkeypatch.setattr(found, "alpha", 2.0, raising=False)
    eager = Net(_read_of("dnuof"))
    model, x = ORTModule(eager, options=Options(fallback="error")), torch.randn(2, 4)
    for alpha in (2.0, 2.0, 3.0, 3.0, 2.0):
        found.alpha = alpha
        torch.testing.assert_close(model(x), eager(x))
    assert len(model.report().exports) == 2


def test_the_same_that_a_hook_sets_anew_is_set_where_it_was_taken_away() -> None:
    held = types.SimpleNamespace(act=torch.tanh)

    def sets(module: nn.Module, given: Any, result: Any) -> None:
        held.act = torch.tanh

    eager = Net(lambda m: 1.0)
    eager.linear.register_forward_hook(sets)
    model, x = ORTModule(eager), torch.randn(2, 4)
    for _ in range(3):
        model(x)
    del held.act
    model(x)
    assert held.act is torch.tanh


class OfTheBase(nn.Module):
    pass


class LooksThrough(OfTheBase):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = [value for name, value in vars(type(self)).items() if name == "shift"]
        return self.linear(x) + (held[0] if held else 1.0)


def test_a_class_that_is_looked_through_gets_what_its_base_has(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = LooksThrough()
    model = ORTModule(eager)
    x = torch.randn(2, 4)
    for owner in (None, OfTheBase, LooksThrough):
        if owner is not None:
            monkeypatch.setattr(owner, "shift", 3.0, raising=False)
        for _ in range(2):
            torch.testing.assert_close(model(x), eager(x))


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * float(vars(type(self))["drawn" + str(0)]()[0].uniform())


def test_what_a_method_holds_that_is_found_by_a_computed_name_is_not_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    held, same = [np.random.default_rng(1)], np.random.default_rng(1)
    monkeypatch.setattr(Drawing, "drawn0", (lambda value: lambda: value)(held), raising=False)
    eager = Drawing()
    model, x = ORTModule(eager), torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(model(x), eager.linear(x) * same.uniform())


def test_the_librarys_looks_at_classes() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * inspect.getattr_static(m, "scale") * (2 if type(type(m)).__dict__ is vars(type) else 3)

    eager = Lambda(forward)
    eager.scale = 2.0
    model, x = ORTModule(eager, options=Options(fallback="error")), torch.randn(2, 4)
    for scale in (2.0, 2.0, 5.0):
        eager.scale = scale
        torch.testing.assert_close(model(x), eager(x))


def test_torchs_own_imports_by_name_find_no_modules_of_the_program() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        mode = {"fcntl": "nearest", "select": "bilinear"}["fcntl"]
        return torch.nn.functional.interpolate(m.linear(x)[None, None], scale_factor=2, mode=mode)

    model = ORTModule(Lambda(forward), options=Options(fallback="error"))
    model(torch.randn(2, 4)).sum().backward()
