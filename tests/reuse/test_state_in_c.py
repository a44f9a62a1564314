"""State that a forward reads through C code, the standard library or torch's own Python: another value, another graph.

Each case gives what the forward computes with, and a change of it. Not here: attributes, globals, containers that the
forward reads itself (test_values_read.py, tests/behavior/test_scope.py).
"""

from __future__ import annotations

import abc
import contextlib
import queue
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule

Case = tuple[Callable[[], float], Callable[[], Any]]


def _shown() -> Case:
    config = types.SimpleNamespace(alpha=2.0)
    return lambda: len(f"{config!r}"), lambda: setattr(config, "alpha", 3.14159)


def _formatted() -> Case:
    config = types.SimpleNamespace(alpha=2.0)
    return lambda: len("%r" % config), lambda: setattr(config, "alpha", 3.14159)  # noqa: UP031


def _compared_whole() -> Case:
    one, other = types.SimpleNamespace(alpha=2.0), types.SimpleNamespace(alpha=2.0)
    return lambda: 2.0 if one == other else 3.0, lambda: setattr(other, "beta", 1.0)


def _arguments_of_an_exception() -> Case:
    error = ValueError(2.0)
    return lambda: error.args[0], lambda: setattr(error, "args", (3.0,))


def _attribute_of_an_exception() -> Case:
    error: Any = OSError(2, "text")
    error.alpha = 2.0
    return lambda: error.alpha * error.errno, lambda: setattr(error, "alpha", 3.0)


def _lock() -> Case:
    lock = threading.Lock()
    return lambda: 2.0 if lock.locked() else 3.0, lock.acquire


def _registered_class() -> Case:
    class Kind(abc.ABC):  # noqa: B024
        pass

    class Derived(Kind):
        pass

    class Other:
        pass

    other = Other()
    return lambda: 2.0 if isinstance(other, Kind) else 3.0, lambda: Derived.register(Other)


def _weak_set() -> Case:
    class Held:
        pass

    held = [Held(), Held()]
    known = weakref.WeakSet(held)
    return lambda: float(len(known)), held.pop


def _weak_reference() -> Case:
    class Held:
        pass

    held = [Held()]
    reference = weakref.ref(held[0])
    return lambda: 2.0 if reference() is None else 3.0, held.clear


def _context() -> Case:
    contexts: list[Any] = [contextlib.nullcontext(2.0)]

    def read() -> float:
        with contexts[0] as value:
            return float(value)

    return read, lambda: contexts.__setitem__(0, contextlib.nullcontext(3.0))


def _loaded_module() -> Case:
    def load(value: float) -> None:
        module: Any = types.ModuleType("state_in_c_settings")
        module.ALPHA = value
        sys.modules["state_in_c_settings"] = module

    def read() -> float:
        import state_in_c_settings  # type: ignore[import-not-found]

        return float(state_in_c_settings.ALPHA)

    load(2.0)
    return read, lambda: load(3.0)


def _backend() -> Case:
    def read() -> float:
        return 2.0 if torch.backends.cuda.flash_sdp_enabled() else 3.0

    return read, lambda: torch.backends.cuda.enable_flash_sdp(False)


def _schedule() -> Case:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step() -> None:
        optimizer.step()
        schedule.step()

    return lambda: schedule.get_last_lr()[0], step


def _saved() -> Case:
    file = Path(tempfile.mkdtemp()) / "state"
    torch.save({"alpha": 2.0}, file)
    return lambda: torch.load(file)["alpha"], lambda: torch.save({"alpha": 3.0}, file)


def _store() -> Case:
    store = torch.distributed.HashStore()
    store.set("alpha", "2")
    return lambda: float(store.get("alpha")), lambda: store.set("alpha", "3")


def _future() -> Case:
    future = torch.futures.Future()
    return lambda: 2.0 if future.done() else 3.0, lambda: future.set_result(None)


def _sequence_of_points() -> Case:
    engine = torch.quasirandom.SobolEngine(1)
    return lambda: float(engine.num_generated), lambda: engine.draw(3)


class Validated:
    __validated_by__ = queue.SimpleQueue()  # type: ignore[var-annotated]

    def __init__(self) -> None:
        self.first = 2.0


def _kept_by_its_class() -> Case:
    held = Validated()
    return (lambda: held.first), (lambda: setattr(held, "first", 3.0))


def _asked_of_its_class() -> Case:
    held = Validated()
    return (lambda: held.__validated_by__.qsize() + 1.0), (lambda: held.__validated_by__.put(None))


CASES = [
    _shown, _formatted, _compared_whole, _arguments_of_an_exception, _attribute_of_an_exception, _lock,
    _registered_class, _weak_set, _weak_reference, _context, _loaded_module, _backend, _schedule, _saved, _store,
    _future, _sequence_of_points, _kept_by_its_class, _asked_of_its_class,
]  # fmt: skip

IN_PYTORCH = [_saved, _store, _future, _asked_of_its_class]  # what these hold cannot be watched


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    torch.backends.cuda.enable_flash_sdp(True)
    sys.modules.pop("state_in_c_settings", None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_a_change_is_seen_at_the_next_call(case: Callable[[], Case]) -> None:
    read, change = case()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * read()

    net = Net()
    model = ORTModule(net)
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(model(x), net.linear(x) * read())
    before = read()
    assert sum(transition.runs for transition in model._manager.transitions()) == (0 if case in IN_PYTORCH else 2)
    change()
    assert read() != before
    for _ in range(2):
        torch.testing.assert_close(model(x), net.linear(x) * read())
