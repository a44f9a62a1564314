"""ORTModule.__call__ asks the sessions without nn.Module's steps in Python, and takes them where they do anything."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule
from tests.support import Lambda


def steady() -> tuple[ORTModule, torch.Tensor]:
    """A wrapper whose calls with this input find their session natively."""
    model, x = ORTModule(nn.Linear(3, 2)), torch.randn(4, 3)
    for _ in range(2):
        model(x)
    return model, x


def native_runs(model: ORTModule) -> int:
    return sum(fast.runs for fast in model._manager.fast_calls)


def test_a_steady_call_takes_none_of_the_steps_of_nn_module() -> None:
    model, x = steady()
    before = native_runs(model)
    with mock.patch("ortmodule.ortmodule._forward", side_effect=AssertionError):
        y = model(x)
    assert native_runs(model) > before
    torch.testing.assert_close(y, model.module(x))


def test_hooks_of_the_wrapper_run() -> None:
    model, x = steady()
    seen: list[str] = []
    handles = [
        model.register_forward_pre_hook(lambda *_: seen.append("pre")),
        model.register_forward_hook(lambda *_: seen.append("post")),
        model.register_full_backward_hook(lambda *_: seen.append("backward")),
        model.register_full_backward_pre_hook(lambda *_: seen.append("backward pre")),
    ]
    model(x).sum().backward()
    assert seen == ["pre", "post", "backward pre", "backward"]
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert len(seen) == 4


@pytest.mark.parametrize("register", ["register_module_forward_pre_hook", "register_module_forward_hook"])
def test_hooks_of_all_modules_run(register: str) -> None:
    model, x = steady()
    seen: list[Any] = []
    handle = getattr(nn.modules.module, register)(lambda module, *_: seen.append(module))
    try:
        model(x)
    finally:
        handle.remove()
    assert any(module is model for module in seen)


def test_a_forward_set_on_the_instance_is_called() -> None:
    model, x = steady()
    before = model.forward
    model.forward = lambda *args: before(*args) + 1
    torch.testing.assert_close(model(x), model.module(x) + 1)
    del model.forward
    torch.testing.assert_close(model(x), model.module(x))


def test_a_subclass_has_its_own_forward() -> None:
    class Doubled(ORTModule):
        def forward(self, *args: Any) -> Any:
            return super().forward(*args) * 2

    model, x = Doubled(nn.Linear(3, 2)), torch.randn(4, 3)
    for _ in range(3):
        torch.testing.assert_close(model(x), model.module(x) * 2)


def test_a_forward_set_on_the_class_is_called() -> None:
    model, x = steady()
    with mock.patch.object(ORTModule, "forward", lambda self, x: "patched"):
        assert model(x) == "patched"
    torch.testing.assert_close(model(x), model.module(x))


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
def test_a_patched_nn_module_sees_the_call(name: str) -> None:
    model, x = steady()
    original, seen = getattr(nn.Module, name), []

    def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return original(self, *args, **kwargs)

    with mock.patch.object(nn.Module, name, patched):
        model(x)
    assert any(module is model for module in seen)


def test_an_nn_module_that_was_patched_before_the_import_sees_the_call() -> None:
    code = """
import torch
from torch import nn
original, seen = nn.Module.__call__, []
def patched(self, *args, **kwargs):
    seen.append(type(self).__name__)
    return original(self, *args, **kwargs)
nn.Module.__call__ = patched
from ortmodule import Options, ORTModule
from tests.support import Lambda
model = ORTModule(nn.Linear(3, 2))
for _ in range(3):
    model(torch.randn(4, 3))
assert seen.count("ORTModule") == 3, seen
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_compiled_call_is_taken() -> None:
    model, x = steady()
    model.__dict__["_compiled_call_impl"] = lambda *args: "compiled"
    assert model(x) == "compiled"


def test_arguments_by_name() -> None:
    model, x = ORTModule(nn.Linear(3, 2)), torch.randn(4, 3)
    for _ in range(3):
        torch.testing.assert_close(model(input=x), model.module(x))
    assert native_runs(model) > 0


def test_an_error_of_the_engine_arrives_as_it_is() -> None:
    model, x = steady()
    fast = mock.Mock()
    fast.call.side_effect = KeyError("inside")
    with mock.patch.object(model._manager, "fast_calls", [fast]), pytest.raises(KeyError, match="inside"):
        model(x)
    torch.testing.assert_close(model(x), model.module(x))


def test_wrong_arguments_raise_the_modules_own_words() -> None:
    model, x = steady()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(4, 5))
    with pytest.raises(TypeError):
        model(x, x)
    torch.testing.assert_close(model(x), model.module(x))


def test_a_wrapper_that_is_not_made_yet_says_so() -> None:
    with pytest.raises((AttributeError, TypeError)):
        ORTModule.__new__(ORTModule)(torch.ones(1))
    with pytest.raises(TypeError):
        ORTModule.__call__(nn.Linear(2, 2), torch.ones(1, 2))


def test_calls_of_other_kinds_in_turn() -> None:
    model = ORTModule(nn.Linear(3, 2))
    for rows in (4, 7, 4, 9):
        x = torch.randn(rows, 3, requires_grad=rows == 7)
        torch.testing.assert_close(model(x), model.module(x))
        model.train(rows != 9)


def asked_of_python(name: str) -> int:
    return getattr(sys, name + "size") + len(sys.path) + len(dir(builtins)) + builtins.max(1, 2)


def test_what_is_looked_through_beside_what_python_keeps_there() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * (asked_of_python("max") % 7)

    model = ORTModule(Lambda(forward), options=Options(fallback="error"))
    x = torch.randn(3, 4)
    for _ in range(3):
        model(x)
    assert native_runs(model) == 2
