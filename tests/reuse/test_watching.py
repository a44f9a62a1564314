"""A steady call sees every change of what its forward reads: by any thread, in a forked process, of objects that were
changed before.

Not here: which places a forward's reads lead to (test_call_checks.py, tests/trust), what the look costs and when it
ends (test_watching_cost.py).
"""

from __future__ import annotations

import collections
import copy
import gc
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule

SCALE = 2.0


class Base(nn.Module):
    shift = 0.5

    def bias(self) -> float:
        return 1.0


class Settings:
    def __init__(self) -> None:
        self.rate = 0.25


class OtherSettings(Settings):
    pass


def offset(value: float = 1.0, *, factor: float = 1.0) -> float:
    return value * factor


def other_offset(value: float = 1.0, *, factor: float = 1.0) -> float:
    return value * factor + 1


def made_counter(start: float) -> Callable[[], float]:
    def count() -> float:
        return start

    return count


def exit_code(program: str) -> tuple[int, str]:
    """Of a Python of its own that runs `program`, and what it says on standard error if that is another than 0."""
    arguments = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr if done.returncode else ""


class Net(Base):
    """Reads one value of each kind of place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.alpha = 1.0
        self.settings = Settings()
        self.items = [1.0, 2.0]
        self.table = {"a": 1.0}
        self.members = {3, 5}
        self.ordered = collections.OrderedDict(a=1.0, b=2.0)
        self.offset = types.FunctionType(offset.__code__, globals(), "offset", (1.0,))
        self.offset.__kwdefaults__ = {"factor": 1.0}
        self.count = made_counter(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.alpha + self.settings.rate * self.items[0] * self.table["a"] + sum(self.members)
        y = y * SCALE + self.shift + self.bias() + self.offset() + self.count() + list(self.ordered.values())[0]
        return y + 1 if hasattr(self, "extra") else y


def steady(module: nn.Module, x: torch.Tensor) -> tuple[ORTModule, Any]:
    model = ORTModule(module, options=Options(fallback="error"))
    for _ in range(3):
        model(x)
    (fast,) = model._manager.fast_calls
    assert fast.matches((x,), {})
    return model, fast


def specialized(m: Net) -> None:
    for _ in range(50):  # the interpreter takes its shortcut for a store into this kind of object
        m.settings.rate = 0.25
    m.settings.rate = 0.75


def another_dict(m: Net) -> None:
    held = vars(m.settings)  # keeps the first one alive
    m.settings.__dict__ = {"rate": 0.75}
    m.kept = held


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda m: setattr(m, "alpha", 3.0),
    "an attribute, past the module": lambda m: m.__dict__.update(alpha=3.0),
    "an attribute that is new": lambda m: setattr(m, "extra", None),
    "an attribute of an object": lambda m: setattr(m.settings, "rate", 0.75),
    "an attribute, in a loop": specialized,
    "an attribute, in the dict": lambda m: vars(m.settings).update(rate=0.75),
    "an attribute, taken out and set": lambda m: (delattr(m.settings, "rate"), setattr(m.settings, "rate", 0.75)),
    "the dict of an object": another_dict,
    "the class of an object": lambda m: setattr(m.settings, "__class__", OtherSettings),
    "an entry": lambda m: m.table.__setitem__("a", 2.0),
    "all entries": lambda m: (m.table.clear(), m.table.update(a=2.0)),
    "an item": lambda m: m.items.__setitem__(0, 5.0),
    "the sign of an item": lambda m: m.items.__setitem__(1, -2.0),
    "a member": lambda m: m.members.add(7),
    "the order of entries": lambda m: m.ordered.move_to_end("a"),
    "code": lambda m: setattr(m.offset, "__code__", other_offset.__code__),
    "a default": lambda m: setattr(m.offset, "__defaults__", (2.0,)),
    "a keyword's default": lambda m: m.offset.__kwdefaults__.update(factor=2.0),
    "a variable around a function": lambda m: setattr(m.count.__closure__[0], "cell_contents", 4.0),
    "a sub-module": lambda m: setattr(m, "linear", nn.Linear(4, 4)),
    "a parameter that becomes none": lambda m: setattr(m.linear, "bias", None),
    "a table of hooks": lambda m: m.linear.register_forward_hook(lambda *_: None),
    "train and eval": lambda m: m.eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_by_the_next_call(name: str) -> None:
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    CHANGES[name](model.module)
    assert not fast.matches((x,), {})
    if name != "a table of hooks":  # which PyTorch has to call
        torch.testing.assert_close(model(x), copy.deepcopy(model.module)(x))


@pytest.mark.parametrize("place", ["a global", "a class's constant", "a base's method"])
def test_a_change_of_what_others_share_is_seen(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    if place == "a global":
        monkeypatch.setitem(globals(), "SCALE", 7.0)
    elif place == "a class's constant":
        monkeypatch.setattr(Net, "shift", 4.0, raising=False)
    else:
        monkeypatch.setattr(Base, "bias", lambda self: 9.0)
    assert not fast.matches((x,), {})
    torch.testing.assert_close(model(x), copy.deepcopy(model.module)(x))


def test_every_change_is_seen_not_the_first_alone() -> None:
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    for _ in range(3):
        model.module.alpha = 3.0
        assert not fast.matches((x,), {})
        model.module.alpha = 1.0
        assert fast.matches((x,), {})
        model.module.settings.rate = 0.75
        assert not fast.matches((x,), {})
        model.module.settings.rate = 0.25
        assert fast.matches((x,), {})


# Per item: the value, one that no program can tell from it, and one that compares equal or looks alike.
VALUES: list[tuple[Any, Any, Any]] = [
    (0.0, 0.0 * 2, -0.0),
    (10**30, 10**29 * 10, 10**30 + 1),
    ((1, "a"), (1, "".join("a")), (1.0, "a")),
    (frozenset({1, 2}), frozenset([1, 2]), frozenset({1, 3})),
    (b"12", bytes([49, 50]), bytearray(b"12")),
    (1 + 0.0j, complex(1.0, 0.0), complex(1.0, -0.0)),
    (True, True, 1),
    (float("nan"), float("nan"), -float("nan")),
    (torch.device("cpu"), torch.device("cpu"), torch.device("meta")),
]


def test_equal_values_are_no_change_and_others_that_compare_equal_are() -> None:
    x = torch.randn(2, 4)
    module = Net()
    module.items = [value for value, _, _ in VALUES]
    _, fast = steady(module, x)
    for i, (value, same, other) in enumerate(VALUES):
        module.items[i] = same
        assert fast.matches((x,), {}), same
        module.items[i] = other
        assert not fast.matches((x,), {}), other
        module.items[i] = value
    assert fast.matches((x,), {})


def test_another_threads_change_is_seen() -> None:
    x = torch.randn(2, 4)
    model, _ = steady(Net(), x)
    for value in (3.0, 4.0, 1.0):
        thread = threading.Thread(target=setattr, args=(model.module, "alpha", value))
        thread.start()
        thread.join()
        torch.testing.assert_close(model(x), copy.deepcopy(model.module)(x))


def test_calls_and_changes_on_many_threads() -> None:
    x = torch.randn(2, 4)
    model, _ = steady(Net(), x)
    right = {a: (model.module.__setattr__("alpha", a), copy.deepcopy(model.module)(x))[1].detach() for a in (1.0, 3.0)}
    wrong: list[torch.Tensor] = []
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            model.module.alpha = 4.0 - model.module.alpha

    def call() -> None:
        for _ in range(200):
            y = model(x).detach()
            if not any(torch.allclose(y, expected) for expected in right.values()):
                wrong.append(y)

    changing = threading.Thread(target=change)
    calling = [threading.Thread(target=call) for _ in range(3)]
    changing.start()
    for thread in calling:
        thread.start()
    for thread in calling:
        thread.join()
    done.set()
    changing.join()
    assert not wrong


def test_a_name_that_other_objects_of_the_class_have_is_seen() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.settings = OtherSettings()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * getattr(self.settings, "late", self.settings.rate)

    OtherSettings().late = 4.0  # type: ignore[attr-defined]
    x = torch.randn(2, 4)
    model, fast = steady(Asks(), x)
    model.module.settings.late = 2.0
    assert not fast.matches((x,), {})
    torch.testing.assert_close(model(x), x * 2.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_sees_its_own_changes() -> None:
    program = """
    import os, torch
    from tests.reuse.test_watching import Net, steady
    torch.set_num_threads(1)
    x = torch.randn(2, 4)
    model, fast = steady(Net(), x)
    child = os.fork()
    if child == 0:
        seen = fast.matches((x,), {})
        model.module.settings.rate = 0.75
        os._exit(0 if seen and not fast.matches((x,), {}) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fast.matches((x,), {})
    model.module.settings.rate = 0.75
    assert not fast.matches((x,), {})
    """
    assert exit_code(program) == (0, "")


def test_an_objects_own_dict_stays_what_it_is() -> None:
    module = Net()
    table, keys = vars(module.settings), list(vars(module))
    steady(module, torch.randn(2, 4))
    assert vars(module.settings) is table
    assert list(vars(module)) == keys
    module.settings.rate = 0.5
    assert table["rate"] == 0.5
    table["rate"] = 0.75
    assert module.settings.rate == 0.75


class AsksTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * getattr(self.linear.weight, "factor", 1.0)


@pytest.mark.filterwarnings("ignore:AsksTensors runs")
@pytest.mark.parametrize("steady_calls", [1, 6])
def test_an_attribute_that_is_set_on_a_parameter_is_seen(steady_calls: int) -> None:
    module, x = AsksTensors(), torch.randn(2, 4)
    model = ORTModule(module)
    for _ in range(steady_calls):
        torch.testing.assert_close(model(x), module(x))
    module.linear.weight.beside = 1
    torch.testing.assert_close(model(x), module(x))
    assert sum(report.runs for report in model.report().sessions) == steady_calls + 1
    module.linear.weight.factor = 3.0
    for _ in range(2):
        torch.testing.assert_close(model(x), module(x))
    del module.linear.weight.factor
    torch.testing.assert_close(model(x), module(x))


def parameter(**attributes: Any) -> nn.Parameter:
    made = nn.Parameter(torch.randn(4, 4))
    vars(made).update(attributes)
    return made


@pytest.mark.filterwarnings("ignore:AsksTensors runs")
@pytest.mark.parametrize("first", [{}, {"beside": 1}], ids=["none", "another"])
@pytest.mark.parametrize("way", ["set", "in the table", "frozen"])
def test_attributes_of_a_parameter_that_takes_anothers_place(way: str, first: dict[str, Any]) -> None:
    module, x = AsksTensors(), torch.randn(2, 4)
    module.linear.weight = parameter(**first)
    if way == "frozen":
        module.requires_grad_(False)
    model = ORTModule(module)

    def put(weight: nn.Parameter) -> None:
        weight.requires_grad_(way != "frozen")
        if way == "set":
            module.linear.weight = weight
        else:
            module.linear._parameters["weight"] = weight

    def follows(runs: int | None) -> None:
        before = sum(report.runs for report in model.report().sessions)
        for _ in range(3):
            torch.testing.assert_close(model(x), module(x))
        assert runs is None or sum(report.runs for report in model.report().sessions) == before + runs

    follows(3)
    put(parameter())
    follows(3)
    put(parameter(factor=3.0))
    follows(0)
    put(parameter())
    follows(3)
    module.linear.weight.factor = 5.0
    follows(0)
    del module.linear.weight.factor
    follows(3)
    put(parameter(other=1))
    follows(None)  # a kind of call that was refused is not tried again where more than the native check would tell
    module.linear.weight.factor = 2.0
    follows(0)


def test_no_dicts_of_attributes_are_made() -> None:
    model = ORTModule(nn.Linear(4, 4))
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
    found = gc.get_referents(model.module.weight)
    assert not any(isinstance(held, dict) for held in found)
