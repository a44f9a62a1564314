"""What the cache on disk takes for another graph: every change that could matter is a miss, and the rest is a hit."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from ortmodule import Options
from ortmodule.graph_transition.disk import code_facts
from ortmodule.graph_transition.disk import key as disk_key
from ortmodule.graph_transition.disk.code_facts import Unkeyable
from ortmodule.graph_transition.disk.key import DiskKey, key_of
from ortmodule.graph_transition.signature import flatten_call
from tests.support import Lambda, mlp

HELPER = """
import torch
SCALE = 2.0
TABLE = {"shift": 1.0}
class Gate:
    def __init__(self, factor):
        self.factor = factor
    def open(self, x):
        return inner(x) * self.factor
    def unused(self):
        return 1
def inner(x):
    return x.tanh()
def helper(x):
    return Gate(SCALE).open(x) + TABLE["shift"]
def unrelated(x):
    return x
"""
NET = """
import torch
import torch.nn as nn
import helper_of_test
class Net(nn.Module):
    size: int = 3
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.settings = Settings()
        self.activation = torch.tanh
    def forward(self, x):
        y = self.activation(self.linear(x))
        return self.finish(helper_of_test.helper(y) * self.settings.scale)
    def finish(self, y):
        return y + self.size
    def never_called(self):
        return 0
class Settings:
    def __init__(self):
        self.scale = 3.0
        self.notes = object()
"""


def load(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A Python module made of `source`, as `import` would make it."""
    module = types.ModuleType(name)
    module.__file__ = f"/nowhere/{name}.py"
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module


def key(module: nn.Module, *args: Any, dynamic: set[tuple[int, int]] | None = None, **options: Any) -> DiskKey:
    call = flatten_call(args or (torch.ones(2, 4),), {})
    return key_of(module, call.leaves, call.shape, dynamic or set(), Options(**options))


def net(monkeypatch: pytest.MonkeyPatch, helper: str = HELPER, source: str = NET) -> nn.Module:
    code_facts.origin_of.cache_clear()
    load("helper_of_test", helper, monkeypatch)
    return load("net_of_test", source, monkeypatch).Net()


SAME = {
    "nothing": lambda t: t,
    "a comment and the lines": lambda t: "# a comment\n\n" + t,
    "an unrelated function": lambda t: t.replace("def unrelated(x):\n    return x", "def unrelated(x):\n    return -x"),
    "a method nobody names": lambda t: t.replace("        return 1", "        return 2").replace(
        "return 0", "return 5"
    ),
}
OTHER = {
    "a function of a helper": lambda t: t.replace("x.tanh()", "x.sin()"),
    "a global number": lambda t: t.replace("SCALE = 2.0", "SCALE = 2.5"),
    "an entry of a global dict": lambda t: t.replace('"shift": 1.0', '"shift": 1.5'),
    "a method of a helper's class": lambda t: t.replace("inner(x) * self.factor", "inner(x) + self.factor"),
    "its constructor": lambda t: t.replace("self.factor = factor", "self.factor = factor + 1"),
    "the forward": lambda t: t.replace("return self.finish(helper", "return -self.finish(helper"),
    "a method that forward calls": lambda t: t.replace("return y + self.size", "return y - self.size"),
    "a class attribute": lambda t: t.replace("size: int = 3", "size: int = 4"),
    "an attribute": lambda t: t.replace("self.scale = 3.0", "self.scale = 3.5"),
    "a function in an attribute": lambda t: t.replace("self.activation = torch.tanh", "self.activation = torch.sin"),
}


@pytest.mark.parametrize("name", SAME)
def test_source_that_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(net(monkeypatch))
    assert key(net(monkeypatch, SAME[name](HELPER), SAME[name](NET))) == before


@pytest.mark.parametrize("name", OTHER)
def test_source_that_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(net(monkeypatch))
    helper, source = OTHER[name](HELPER), OTHER[name](NET)
    assert (helper, source) != (HELPER, NET)
    assert key(net(monkeypatch, helper, source)) != before


@contextlib.contextmanager
def put(holder: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, value)
        yield


@contextlib.contextmanager
def changed(call: Callable[[], Any], back: Callable[[], Any]) -> Iterator[None]:
    call()
    try:
        yield
    finally:
        back()


def my_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, self.weight) * 3


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "torch's version": lambda: put(torch, "__version__", "9.9.9"),
    "Python's version": lambda: put(sys, "version", "4.0"),
    "our version": lambda: put(disk_key._build_info, "VERSION", "99"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "default dtype": lambda: changed(
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    ),
    "deterministic algorithms": lambda: changed(
        lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
    ),
    "a patched method of torch": lambda: put(nn.Linear, "forward", my_forward),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings(name: str) -> None:
    module, x = mlp(), torch.ones(2, 4)
    before = key(module, x)
    disk_key._own_version.cache_clear()
    disk_key._version.cache_clear()
    try:
        with SURROUNDINGS[name]():
            assert key(module, x) != before
    finally:
        disk_key._own_version.cache_clear()
        disk_key._version.cache_clear()
    assert key(module, x) == before


def frozen(module: nn.Module) -> None:
    module[0].weight.requires_grad_(False)


def tied(module: nn.Module) -> None:
    module[2] = nn.Linear(8, 3)
    module[2].bias = nn.Parameter(torch.zeros(3))
    module.register_parameter("again", module[2].bias)


MODULES: dict[str, Callable[[nn.Module], Any]] = {
    "train and eval": lambda m: m.eval(),
    "one sub-module's mode": lambda m: m[1].eval(),
    "requires_grad": frozen,
    "a tied parameter": tied,
    "dtype": lambda m: m.double(),
    "a layer's type": lambda m: m.__setitem__(1, nn.Sigmoid()),
    "a layer's setting": lambda m: m.__setitem__(1, nn.Softmax(0)),
    "an attribute": lambda m: setattr(m, "factor", 2),
    "a buffer": lambda m: m.register_buffer("extra", torch.zeros(1)),
    "a hook": lambda m: m[0].register_forward_hook(lambda module, args, output: output * 2),
    "a forward of its own": lambda m: setattr(m[1], "forward", functools.partial(torch.mul, 2)),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_module(name: str) -> None:
    module = mlp()
    before = key(module)
    assert key(mlp()) == before
    MODULES[name](module)
    assert key(module) != before


def test_the_call() -> None:
    module, x = Lambda(lambda m, *args: m.linear(args[0])), torch.ones(2, 4)
    calls = [
        (x,), (x.double(),), (torch.ones(3, 4),), (torch.ones(1, 2, 4),), (x.clone().requires_grad_(),),
        (torch.ones(4, 2).t(),), (torch.ones(1, 4).expand(2, 4),), (x, x), (x, x.clone()), ([x],), (x, None), (x, True),
        (x, 1), (x, 1.0), (x, 2), (x, "a"), (x, {"k": 1}), (x, {"j": 1}), (nn.Parameter(x),),
    ]  # fmt: skip
    keys = [key(module, *call) for call in calls]
    assert len(set(keys)) == len(calls)
    assert keys == [key(module, *call) for call in calls]


def test_sizes_that_vary_do_not_count() -> None:
    module = mlp()
    two, nine = (key(module, torch.ones(n, 4), dynamic={(0, 0)}) for n in (2, 9))
    assert two.name == nine.name != key(module, torch.ones(2, 4)).name
    assert two.family == key(module, torch.ones(2, 4)).family


def test_options_count_and_the_folder_does_not() -> None:
    module = mlp()
    assert key(module, dropout="torch") != key(module)
    assert key(module, cache_dir="/elsewhere", cache_dir_mib=3) == key(module)


def closure(value: Any) -> nn.Module:
    return Lambda(lambda m, x: m.linear(x) * value)


def test_closures_count_by_what_they_hold() -> None:
    assert key(closure(2.0)) == key(closure(2.0)) != key(closure(3.0))
    with pytest.raises(Unkeyable, match="closure"):
        key(closure(torch.ones(4)))
    with pytest.raises(Unkeyable, match="closure"):
        key(closure(open(__file__)))


ACTIVATION = """
import torch
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


def test_a_module_class_that_forward_instantiates(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(source: str) -> nn.Module:
        double = load("activation_of_test", source, monkeypatch).Double
        return Lambda(lambda m, x: double()(m.linear(x)))

    assert key(make(ACTIVATION)) == key(make(ACTIVATION)) != key(make(ACTIVATION.replace("* 2", "* 3")))


def test_what_a_weak_reference_or_a_namespace_leads_to_counts() -> None:
    def make(holder: Any) -> nn.Module:
        return Lambda(lambda m, x: m.linear(x) * (holder() if isinstance(holder, weakref.ref) else holder).scale)

    for kind in (Node, lambda scale: argparse.Namespace(scale=scale)):
        two, again, three = (kind(scale) for scale in (2.0, 2.0, 3.0))
        assert key(make(two)) == key(make(again)) != key(make(three))
        assert key(make(weakref.ref(two))) == key(make(weakref.ref(again))) != key(make(weakref.ref(three)))


@dataclasses.dataclass
class Node:
    scale: float
    next: Any = None


def test_an_object_that_leads_back_to_itself_has_a_key() -> None:
    def make(scale: float) -> nn.Module:
        module = Lambda(lambda m, x: m.linear(x) * m.node.next.scale)
        module.node = Node(scale)
        module.node.next = module.node
        module.__dict__["owner"] = module
        return module

    assert key(make(1.0)) == key(make(1.0)) != key(make(2.0))


UNKEYABLE: dict[str, Callable[[], nn.Module]] = {
    "Python's random numbers": lambda: Lambda(lambda m, x: m.linear(x) * random.random()),
    "a module that is no sub-module": lambda: with_attribute([nn.Linear(4, 4)]),
    "a generator": lambda: with_attribute(i for i in range(3)),
    "code that is made while it runs": lambda: Lambda(lambda m, x: eval("m.linear(x)", {"m": m, "x": x})),
    "a file": lambda: Lambda(lambda m, x: m.linear(x) * len(open("scale").read())),
    "a script module": lambda: nn.Sequential(torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))),
}


def with_attribute(value: Any) -> nn.Module:
    module = Lambda(lambda m, x: m.linear(x) if m.thing else x)
    module.__dict__["thing"] = value
    return module


@pytest.mark.parametrize("name", UNKEYABLE)
def test_what_cannot_be_told_has_no_key(name: str) -> None:
    with pytest.raises(Unkeyable):
        key(UNKEYABLE[name]())


def test_an_environment_variable_that_forward_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    module = Lambda(lambda m, x: m.linear(x) * float(os.environ.get("MY_TEST_SCALE", "1")))
    before = key(module)
    monkeypatch.setenv("SOMETHING_ELSE", "2")
    assert key(module) == before
    monkeypatch.setenv("MY_TEST_SCALE", "2")
    assert key(module) != before


def test_a_module_that_forward_itself_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        import imported_of_test

        return imported_of_test.f(m.linear(x))

    with pytest.raises(Unkeyable, match="not loaded"):
        key(Lambda(forward))
    load("imported_of_test", "def f(x):\n    return x", monkeypatch)
    before = key(Lambda(forward))
    load("imported_of_test", "def f(x):\n    return -x", monkeypatch)
    assert key(Lambda(forward)) != before
