"""Python values outside the module: globals, closures, classes, settings that a forward reads or changes.

Not here: attributes of the module itself (test_kept_state.py).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from ortmodule import CaptureError, Options, ORTModule
from tests.support import Lambda, exports

SCALE = 2.0
TABLE = {"scale": 2.0, "seen": 0}
FACTORS = [2.0]
TENSOR = torch.full((4,), 2.0)
DEFAULT = SimpleNamespace(scale=2.0)
VARIABLE = contextvars.ContextVar("VARIABLE", default=DEFAULT)
SETTINGS = SimpleNamespace(inner=SimpleNamespace(scale=2.0))


class Setting:
    scale = 2.0
    seen = 0


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def around() -> tuple[Callable[..., torch.Tensor], Callable[[], None]]:
    scale = 2.0

    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * scale

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return forward, change


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    globals().update(SCALE=2.0, TENSOR=torch.full((4,), 2.0))
    TABLE.update(scale=2.0, seen=0)
    FACTORS[:] = [2.0]
    Setting.scale, Setting.seen, SETTINGS.inner.scale, DEFAULT.scale = 2.0, 0, 2.0, 2.0


AROUND, CHANGE_AROUND = around()
READS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], Any]]] = {
    "a global": (lambda m, x: m.linear(x) * SCALE, lambda: globals().update(SCALE=3.0)),
    "a global that a helper reads": (lambda m, x: scaled(m.linear(x)), lambda: globals().update(SCALE=3.0)),
    "an entry of a global dict": (lambda m, x: m.linear(x) * TABLE["scale"], lambda: TABLE.update(scale=3.0)),
    "an item of a global list": (lambda m, x: m.linear(x) * FACTORS[0], lambda: FACTORS.insert(0, 3.0)),
    "a class attribute": (lambda m, x: m.linear(x) * Setting.scale, lambda: setattr(Setting, "scale", 3.0)),
    "a namespace in a namespace": (
        lambda m, x: m.linear(x) * SETTINGS.inner.scale,
        lambda: setattr(SETTINGS.inner, "scale", 3.0),
    ),
    "a global tensor, another one": (
        lambda m, x: m.linear(x) * TENSOR,
        lambda: globals().update(TENSOR=torch.full((4,), 3.0)),
    ),
    "a global tensor, in place": (lambda m, x: m.linear(x) * TENSOR, lambda: TENSOR.mul_(2)),
    "a closure": (AROUND, CHANGE_AROUND),
    "the default of a context variable": (
        lambda m, x: m.linear(x) * VARIABLE.get().scale,
        lambda: setattr(DEFAULT, "scale", 3.0),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_change_outside_the_module_is_seen(name: str) -> None:
    forward, change = READS[name]
    eager, other = Lambda(forward), Lambda(forward)
    model = ORTModule(other, options=Options(fallback="error"))
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 1
    change()
    for _ in range(2):
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == (1 if name.endswith("in place") else 2), model.report()


def counts_in_dict(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    TABLE["seen"] += 1
    return m.linear(x) * TABLE["seen"]


def counts_in_class(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    Setting.seen += 1
    return m.linear(x)


def keeps_in_list(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    FACTORS.append(float(x.shape[0]))
    return m.linear(x)


@pytest.mark.filterwarnings("ignore:Lambda runs")
@pytest.mark.parametrize("forward", [counts_in_dict, counts_in_class, keeps_in_list])
def test_a_forward_that_changes_something_outside_does_so_at_each_call(forward: Callable[..., Any]) -> None:
    model, x = ORTModule(Lambda(forward)), torch.randn(3, 4)
    results = [model(x) for _ in range(3)]
    expected = {"counts_in_dict": (3, 0, 1), "counts_in_class": (0, 3, 1), "keeps_in_list": (0, 0, 4)}
    assert (TABLE["seen"], Setting.seen, len(FACTORS)) == expected[forward.__name__]
    if forward is counts_in_dict:
        torch.testing.assert_close(results[2], results[0] * 3)
    with pytest.raises(CaptureError, match=r"the forward changes Python values.*(TABLE|Setting\.seen|FACTORS)"):
        ORTModule(Lambda(forward), options=Options(fallback="error"))(x)


def starts_again(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    global SCALE
    SCALE = 2.0
    return m.linear(x)


def sets_of_an_object(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    SETTINGS.inner.scale = 2.0
    return m.linear(x)


@pytest.mark.parametrize("forward", [starts_again, sets_of_an_object])
def test_what_a_forward_sets_to_what_it_was_is_set_at_each_call(forward: Callable[..., Any]) -> None:
    model, x = ORTModule(Lambda(forward), options=Options(fallback="error")), torch.randn(3, 4)
    for value in (2.0, 3.0, 3.0, -2.0):
        globals().update(SCALE=value)
        SETTINGS.inner.scale = value
        model(x)
        assert (SCALE if forward is starts_again else SETTINGS.inner.scale) == 2.0
    assert exports(model) == 2, model.report()


@pytest.mark.filterwarnings("ignore:Lambda runs")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: numpy.load(path)[0],
        lambda path: numpy.load(path, mmap_mode="r")[0],
        lambda path: numpy.loadtxt(f"{path}.txt")[0],
        lambda path: numpy.fromfile(path, dtype=numpy.uint8)[-1],
        lambda path: numpy.memmap(path, dtype=numpy.uint8)[-1],
    ],
)
def test_a_file_that_numpy_reads_counts_at_each_call(read: Callable[[str], Any], tmp_path: Path) -> None:
    path = str(tmp_path / "numbers.npy")

    def write(value: float) -> None:
        numpy.save(path, numpy.array([value, value]))
        numpy.savetxt(f"{path}.txt", numpy.array([value, value]))

    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * float(read(path))

    eager, model, x = Lambda(forward), ORTModule(Lambda(forward)), torch.randn(3, 4)
    for value in (2.0, 2.0, -3.0):
        write(value)
        torch.testing.assert_close(model(x), eager(x))


@pytest.mark.parametrize(
    "make", [lambda a: numpy.dot(a, a), lambda a: numpy.mean(a), lambda a: numpy.where(a > 2, a, 1)[0]]
)
def test_a_function_of_numpy_runs_in_the_engine(make: Callable[[Any], Any]) -> None:
    array = numpy.array([2.0, 3.0])

    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * float(make(array))

    eager, model = Lambda(forward), ORTModule(Lambda(forward), options=Options(fallback="error"))
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), eager(x))
        torch.testing.assert_close(model(x), eager(x))
        array += 1


def test_how_numpy_takes_errors_counts_at_each_call() -> None:
    eager = Lambda(lambda m, x: m.linear(x) * len(numpy.geterr()["over"]))
    model, x = ORTModule(Lambda(eager.function)), torch.randn(3, 4)
    for over in ("warn", "warn", "ignore"):
        with numpy.errstate(over=over):
            torch.testing.assert_close(model(x), eager(x))


class Annealed(nn.Module):
    """A network, and a temperature that a schedule sets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) / self.temperature


@pytest.mark.filterwarnings("ignore:Annealed runs partly")
def test_a_value_that_changes_at_each_step_does_not_export_at_each_step() -> None:
    torch.manual_seed(0)
    module = Annealed()
    model, x = ORTModule(module), torch.randn(3, 4)
    for step in range(20):
        module.temperature = 1.0 + step
        torch.testing.assert_close(model(x), module.net(x) / (1.0 + step))
    report = model.report()
    assert report.fallback == "partial" and "temperature" in str(report.fallback_reason), report
    assert len(report.exports) <= 10, report
