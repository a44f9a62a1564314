"""Imports in a forward: of modules that nothing has loaded before, and of ones that are not there."""

from __future__ import annotations

import copy
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule

FILES = {
    "late_package/__init__.py": "",
    "late_package/values.py": """
import torch
EYE, LAYER, RAN = torch.eye(4), torch.nn.Linear(4, 4), []
def scaled(x): return x @ EYE * 2
""",
    "late_package/registry.py": """
from . import values
values.RAN.append("registry")
TABLE = {}
def entered(function): TABLE[function.__name__] = function; return function
@entered
def shifted(x): return x + len(TABLE) + len(values.RAN)
""",
    "late_circle/__init__.py": "from .first import FIRST",
    "late_circle/first.py": "FIRST = 2.0\nfrom . import second",
    "late_circle/second.py": "from .first import FIRST\nSECOND = FIRST + 1\nopen(__file__).close()",
}


@pytest.fixture(autouse=True)
def late_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


def statement(x: torch.Tensor) -> torch.Tensor:
    import late_package.values  # type: ignore[import-not-found]

    return late_package.values.scaled(x)  # type: ignore[no-any-return]


def of_a_package(x: torch.Tensor) -> torch.Tensor:
    from late_package import registry

    return registry.shifted(x)  # type: ignore[no-any-return]


def by_name(x: torch.Tensor) -> torch.Tensor:
    return importlib.import_module(".values", "late_package").scaled(x)  # type: ignore[no-any-return]


def in_a_circle(x: torch.Tensor) -> torch.Tensor:
    try:
        from late_circle.second import SECOND  # type: ignore[import-not-found]
    except Exception:
        return x
    return x * SECOND  # type: ignore[no-any-return]


class Late(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(4, 4), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.layer(x))


def wrapped(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[nn.Module, ORTModule]:
    eager = Late(run)
    return eager, ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))


@pytest.mark.parametrize("run", [statement, of_a_package, by_name, in_a_circle])
def test_what_an_import_makes_is_the_programs(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    eager, model = wrapped(run)
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), eager(x))
    torch.testing.assert_close(model(x + 1), eager(x + 1))
    if run is not in_a_circle:
        values = sys.modules["late_package.values"]
        assert type(values.EYE) is torch.Tensor and torch.equal(values.EYE, torch.eye(4))
        assert sys.modules["late_package"].values is values  # type: ignore[attr-defined]
        assert values.RAN == (["registry"] if run is of_a_package else [])
        values.EYE.mul_(3)
        values.RAN.append("later")
        torch.testing.assert_close(model(x), eager(x))


def test_a_module_that_comes_later() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        try:
            import late_and_absent  # type: ignore[import-not-found]
        except ImportError:
            return x
        return x * late_and_absent.factor  # type: ignore[no-any-return]

    eager, model = wrapped(run)
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), eager(x))
    sys.modules["late_and_absent"] = types.ModuleType("late_and_absent")
    sys.modules["late_and_absent"].factor = 3.0  # type: ignore[attr-defined]
    torch.testing.assert_close(model(x), eager(x))
    sys.modules["late_and_absent"].factor = 5.0  # type: ignore[attr-defined]
    torch.testing.assert_close(model(x), eager(x))


def test_an_error_in_an_import_is_the_forwards() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        import late_broken  # type: ignore[import-not-found]

        return x * late_broken.factor  # type: ignore[no-any-return]

    (Path(sys.path[0]) / "late_broken.py").write_text("raise RuntimeError('not today')")
    _, model = wrapped(run)
    with pytest.raises(RuntimeError, match="not today"):
        model(torch.randn(3, 4))
    (Path(sys.path[0]) / "late_broken.py").write_text("factor = 2.0")
    importlib.invalidate_caches()
    eager, again = wrapped(run)
    x = torch.randn(3, 4)
    torch.testing.assert_close(again(x), eager(x))
