"""A forward that makes a number of a tensor outside of its module, or asks a generator, follows it at each call.

Not here: questions about the values of inputs and buffers (test_branches_on_inputs.py).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule


class Held(nn.Module):
    """Multiplies by what `read` makes of tensors and a generator that are no parameters or buffers."""

    def __init__(self, read: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read = read
        self.held = [torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0])]
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.read(self, x)


def assert_follows(module: nn.Module, change: Callable[[Any], object]) -> ORTModule:
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x), module(x))
    change(module)
    for _ in range(2):
        torch.testing.assert_close(wrapped(x), module(x))
    return wrapped


def fill(i: int, value: float) -> Callable[[Any], object]:
    return lambda m: m.held[i].fill_(value)


READS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[Any], object]]] = {
    "float": (lambda m, x: float(m.held[0]), fill(0, 5.0)),
    "float of data that is exchanged": (
        lambda m, x: float(m.held[0]), lambda m: setattr(m.held[0], "data", torch.tensor(5.0)),
    ),
    "range": (lambda m, x: len(range(int(m.held[0]))), fill(0, 5.0)),
    "a list of each": (lambda m, x: m.held[0].tolist() + sum(m.held[1].tolist()), fill(1, 5.0)),
    "text": (lambda m, x: len(str(m.held[1])), fill(1, 555.0)),
    "a tensor made of it": (lambda m, x: torch.tensor([m.held[0], 1.0]).sum(), fill(0, 5.0)),
    "a new tensor made of it": (lambda m, x: x.new_tensor([m.held[0], 1.0]).sum(), fill(0, 5.0)),
    "a number's argument": (lambda m, x: torch.full((1,), m.held[0]), fill(0, 5.0)),
    "a small constant with it": (lambda m, x: (torch.tensor(2.0) * m.held[0]).item(), fill(0, 5.0)),
    "an item by a constant": (lambda m, x: m.held[1].index_select(0, torch.tensor(1)).item(), fill(1, 5.0)),
    "a generator's seed": (lambda m, x: m.generator.initial_seed(), lambda m: m.generator.manual_seed(5)),
    "the recursion limit": (
        lambda m, x: float(sys.getrecursionlimit()), lambda m: sys.setrecursionlimit(sys.getrecursionlimit() + 100),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_number_read_in_the_engine_follows_what_it_was_made_of(name: str) -> None:
    limit = sys.getrecursionlimit()
    try:
        wrapped = assert_follows(Held(READS[name][0]), READS[name][1])
        assert sum(report.runs for report in wrapped.report().sessions) == 4
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_generator_of_python_that_an_object_holds_goes_on() -> None:
    held = random.Random(1)
    module = Held(lambda m, x: {"one": held}["one"].random())
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    results = [wrapped(x) for _ in range(3)]
    held.seed(1)
    for result in results:
        torch.testing.assert_close(module(x), result)


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_state_of_the_default_generator_is_the_present_one() -> None:
    module = Held(lambda m, x: torch.get_rng_state()[:8].sum().float())
    assert_follows(module, lambda m: torch.manual_seed(6))


@pytest.mark.parametrize("size", [3, 24])
@pytest.mark.parametrize("made", [torch.from_numpy, torch.as_tensor, torch.frombuffer])
def test_an_array_that_comes_back_with_the_same_numbers(made: Callable[..., torch.Tensor], size: int) -> None:
    held = {"array": np.arange(float(size))}

    def read(_: Any, x: torch.Tensor) -> torch.Tensor:
        if made is torch.frombuffer:
            return torch.frombuffer(held["array"], dtype=torch.float64).float().sum()
        return made(held["array"]).float().sum()

    module = Held(read)
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    first = held["array"]
    for change in (lambda: None, lambda: first.put(0, 5.0), lambda: held.update(array=np.arange(float(size)))):
        change()
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), module(x))


@pytest.mark.parametrize(
    "read", [lambda t: t.tolist()[0], lambda t: float(t.numpy()[0]), lambda t: float(np.asarray(t)[0])]
)
def test_values_of_a_view_are_read_in_inference_mode(read: Callable[[torch.Tensor], float]) -> None:
    module = Held(lambda m, x: read(m.held[0]))
    module.held = [torch.arange(8.0)[2:6]]
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    for value in (2.0, 3.0):
        module.held[0].fill_(value)
        with torch.inference_mode():
            torch.testing.assert_close(wrapped(x), module(x))
        torch.testing.assert_close(wrapped(x), module(x))


SCALES = torch.tensor([0.0, 1.0])


class WithLiteral(nn.Module):
    """A tensor that is written out has torch trace the program again, and compute with small constants meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y * (1 + SCALES.max().item()) * SCALES[1].item() + torch.tensor([2, 3, 4, 5])


def test_a_number_of_a_tensor_beside_one_that_is_written_out() -> None:
    module = WithLiteral()
    wrapped, x = ORTModule(module), torch.randn(3, 4)
    for value in (1.0, 1.0, 3.0, 0.5):
        SCALES[1] = value
        torch.testing.assert_close(wrapped(x), module(x))
    assert wrapped.report().fallback == "none"
