"""What a forward finds by a name that it is given, and the members of enums, count as what it names itself."""

from __future__ import annotations

import enum
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule

SETTING = 2.0


class Rate(enum.Enum):
    LOW = 2.0
    HIGH = 3.0


def found(name: str) -> Any:
    return sys.modules[name]


class Scaled(nn.Module):
    def __init__(self, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read = read
        self.where = "settings_found_by_name"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.read(self)


READS: dict[str, Callable[[Any], float]] = {
    "a module by its own name": lambda m: sys.modules[__name__].SETTING,
    "a module by its own name, imported": lambda m: importlib.import_module(__name__).SETTING,
    "a helper's module by a constant": lambda m: found("settings_found_by_name").SETTING,
    "a helper's module by an attribute": lambda m: found(m.where).SETTING,
    "an import by an attribute": lambda m: __import__(m.where).SETTING,
    "the value of an enum's member": lambda m: Rate.LOW.value,
    "the value of a member found by value": lambda m: Rate(2.0).value,
}


@pytest.mark.parametrize("name", READS)
def test_value_that_is_found_counts_at_each_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("settings_found_by_name")
    monkeypatch.setitem(sys.modules, "settings_found_by_name", other)
    monkeypatch.setattr(other, "SETTING", 2.0, raising=False)
    module, x = Scaled(READS[name]), torch.ones(2, 4)
    wrapped = ORTModule(module)
    for value in (2.0, 2.0, 5.0, 5.0):
        monkeypatch.setattr(other, "SETTING", value)
        monkeypatch.setattr(sys.modules[__name__], "SETTING", value)
        monkeypatch.setattr(Rate.LOW, "_value_", value)
        torch.testing.assert_close(wrapped(x), module.linear(x) * value)
    assert sum(report.runs for report in wrapped.report().sessions) == 4


@pytest.mark.parametrize("by", ["a constant", "an attribute"])
def test_module_that_is_loaded_later_is_found_missing_before(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "loaded_later_by_the_program"
    asked: dict[str, Callable[[Any], float]] = {
        "a constant": lambda m: 2.0 if "loaded_later_by_the_program" in sys.modules else 5.0,
        "an attribute": lambda m: 2.0 if m.where in sys.modules else 5.0,
    }
    module, x = Scaled(asked[by]), torch.ones(2, 4)
    module.where = name
    wrapped = ORTModule(module)
    for loaded in (False, False, True, True, False, True):
        if loaded:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
        torch.testing.assert_close(wrapped(x), module.linear(x) * (2.0 if loaded else 5.0))
    assert sum(report.runs for report in wrapped.report().sessions) == 6


def test_global_of_an_expression_counts_beside_modules_that_keep_books() -> None:
    scope: dict[str, Any] = {"__name__": "settings_of_an_expression"}
    exec("import decimal, threading\nSETTING = 2.0\ndef read(m): return eval('SETTING')", scope)
    module, x = Scaled(scope["read"]), torch.ones(2, 4)
    wrapped = ORTModule(module)
    for value in (2.0, 2.0, 5.0, 5.0):
        scope["SETTING"] = value
        torch.testing.assert_close(wrapped(x), module.linear(x) * value)
    assert sum(report.runs for report in wrapped.report().sessions) == 4
