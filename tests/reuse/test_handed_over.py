"""C functions that other C functions call, which nobody hears of: a forward that hands one over runs in PyTorch, and
says why.

Not here: C functions that the forward calls itself (test_state_in_c.py).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule

PARTIAL = functools.partial(os.access, mode=os.F_OK)
TABLE = {"access": os.access}


def _in_default(path: str, access: Callable[..., bool] = os.access) -> int:
    return sum(map(access, [path], [os.F_OK]))


HANDED: dict[str, Callable[[str], float]] = {
    "map": lambda path: sum(map(os.access, [path], [os.F_OK])),
    "starmap": lambda path: sum(itertools.starmap(os.access, [(path, os.F_OK)])),
    "filter": lambda path: len(list(filter(functools.partial(os.access, mode=os.F_OK), [path]))),
    "partial": lambda path: float(functools.partial(os.access, path)(os.F_OK)),
    "partial of a global": lambda path: float(PARTIAL(path)),
    "sorted": lambda path: float(os.access in sorted([os.access], key=lambda f: 0) and os.access(path, os.F_OK)),
    "table": lambda path: sum(map(TABLE["access"], [path], [os.F_OK])),
    "default": lambda path: _in_default(path),
}


class Asking(nn.Module):
    def __init__(self, ask: Callable[[str], float], path: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.ask, self.path = ask, path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (1.0 + self.ask(self.path))


@pytest.mark.parametrize("how", HANDED)
def test_what_is_handed_over_runs_in_pytorch(how: str, tmp_path: Path) -> None:
    path = tmp_path / "there"
    model, x = ORTModule(Asking(HANDED[how], str(path))), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="posix.access"):
        model(x)
    path.touch()
    torch.testing.assert_close(model(x), model.module(x))


class Clocked(nn.Module):
    """Could ask for the folder, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.where = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: Any = self.linear(x)
        return y * len(os.getcwd()) if self.where else y


def test_what_is_only_named_runs_in_the_engine() -> None:
    model, x = ORTModule(Clocked(), options=Options(fallback="error")), torch.randn(3, 4)
    torch.testing.assert_close(model(x), model.module(x))


def test_what_is_handed_over_may_be_vouched_for(tmp_path: Path) -> None:
    module = Asking(HANDED["map"], str(tmp_path))
    model, x = ORTModule(module, options=Options(fallback="error", vouched=(os.access,))), torch.randn(3, 4)
    torch.testing.assert_close(model(x), module(x))


class Below(nn.Module):
    """Reads a variable of its caller's."""

    def __init__(self, frame: Callable[[], Any]) -> None:
        super().__init__()
        self.linear, self.frame = nn.Linear(4, 4), frame

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frame = self.frame()
        while "scale_of_caller" not in frame.f_locals:
            frame = frame.f_back
        return self.linear(x) * frame.f_locals["scale_of_caller"]


@pytest.mark.parametrize("frame", [inspect.currentframe, sys._getframe, lambda: sys._getframe()])
def test_a_forward_that_looks_at_frames_runs_in_pytorch(frame: Callable[[], Any]) -> None:
    def call(f: Callable[..., torch.Tensor], scale_of_caller: float) -> torch.Tensor:
        return f(x)

    model, x = ORTModule(Below(frame)), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="looks at frames"):
        call(model, 2.0)
    torch.testing.assert_close(call(model, 3.0), call(model.module, 3.0))


def test_a_builtin_that_is_handed_over_runs_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = ORTModule(Asking(lambda path: len([*map(print, [path])]), "said")), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="print"):
        model(x)
    capsys.readouterr()
    model(x)
    assert capsys.readouterr().out == "said\n"
