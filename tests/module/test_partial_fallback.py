"""A module that cannot be captured whole: its largest sub-modules run in the engine, the rest in PyTorch."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from tests.support import assert_same_gradients


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.down(torch.relu(self.up(self.norm(x))))


class Stubborn(Block):
    """A block with a branch on data."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = super().forward(x, scale)
        return y if y.sum() > -1e9 else x


class Inner(nn.Module):
    """Not capturable itself, but with a block that is."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x)
        return y if y.mean().item() < 1e9 else x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Stubborn(), Inner(), Block()])
        self.head = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # Python state: no graph of the whole can repeat it
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def outer() -> tuple[ORTModule, nn.Module]:
    module = Outer()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(torch.randn(4, 8))
        eager(torch.randn(4, 8))
    return model, eager


def compare(model: nn.Module, eager: nn.Module, *args: Any) -> None:
    got, want = model(*args), eager(*args)
    torch.testing.assert_close(got, want)
    model.zero_grad()
    eager.zero_grad()
    got.square().sum().backward()
    want.square().sum().backward()
    assert_same_gradients(model, eager)


def test_the_parts_that_can_be_captured_run_in_the_engine() -> None:
    model, eager = outer()
    for rows in (4, 4, 6, 9):
        compare(model, eager, torch.randn(rows, 8))
    report = model.report()
    assert report.fallback == "partial"
    assert model.calls == 5 == eager.calls, "the rest of the forward ran in Python, once per call"
    assert sum(s.runs for s in report.sessions) == 3 * 5, "two blocks and the one inside Inner"
    assert len(report.exports) == 6, "static, then dynamic, for each"


def test_one_warning_says_what_runs_where() -> None:
    with pytest.warns(UserWarning) as caught:
        model = ORTModule(Outer())
        for _ in range(3):
            model(torch.randn(4, 8))
    ours = [str(w.message) for w in caught if "ORTModule" in str(w.message)]
    assert len(ours) == 1 and "partly in PyTorch" in ours[0] and "y.sum() > -1e9" in ours[0]


def test_sub_modules_are_as_before_between_calls() -> None:
    model, eager = outer()
    assert all("forward" not in m.__dict__ for m in model.modules())
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 5))
    assert all("forward" not in m.__dict__ for m in model.modules())
    compare(pickle.loads(pickle.dumps(model.module)), eager, torch.randn(4, 8))


def test_hooks_of_a_part_run_once_per_call() -> None:
    model, eager = outer()
    seen: list[int] = []
    model.module.layers[0].register_forward_hook(lambda m, args, out: seen.append(1))
    for _ in range(3):
        compare(model, eager, torch.randn(4, 8))
    assert len(seen) == 3


def test_a_forward_that_was_set_on_an_instance_stays() -> None:
    module = Outer()
    block = module.layers[0]
    block.forward = lambda x: 2 * Block.forward(block, x)
    eager = copy.deepcopy(module)
    eager.layers[0].forward = lambda x: 2 * Block.forward(eager.layers[0], x)
    model = ORTModule(module)
    mine = block.forward
    with pytest.warns(UserWarning):
        compare(model, eager, torch.randn(4, 8))
    assert block.forward is mine


def test_changed_modes_and_frozen_parameters_are_seen() -> None:
    model, eager = outer()
    for module in (model, eager):
        module.layers[0].requires_grad_(False)
    compare(model, eager, torch.randn(4, 8))
    for module in (model, eager):
        module.eval()
    with torch.no_grad():
        x = torch.randn(4, 8)
        torch.testing.assert_close(model(x), eager(x))


def test_a_wrapper_that_fell_back_can_be_copied() -> None:
    model, eager = outer()
    other = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(other, eager, torch.randn(4, 8))
    assert other.report().fallback == "partial"


def test_a_kind_of_call_that_can_be_captured_still_is() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor, check: bool = False) -> torch.Tensor:
            y = self.block(x)
            return y.nan_to_num() if check and y.isnan().any() else y

    module = Sometimes()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    with pytest.warns(UserWarning, match="partly"):
        compare(model, eager, torch.randn(4, 8), True)
    compare(model, eager, torch.randn(4, 8))
    compare(model, eager, torch.randn(4, 8), True)
    report = model.report()
    assert [s.runs for s in report.sessions] == [1, 2]


class Differentiating(nn.Module):
    """A forward with derivatives of its own sub-module in the result (physics-informed training)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.field = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.field(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return slope + bend


class HoldsDifferentiating(nn.Module):
    """The same one level deeper, in a module that cannot be captured for another reason."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Differentiating()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.inner(x)
        return y if y.sum() > -1e9 else x


@pytest.mark.parametrize("kind", [Differentiating, HoldsDifferentiating])
def test_a_forward_that_differentiates_its_sub_modules_has_eagers_numbers(kind: type[nn.Module]) -> None:
    module = kind()
    eager, model = copy.deepcopy(module), ORTModule(module)
    with pytest.warns(UserWarning, match="`grad` is called inside forward|data|requires_grad"):
        compare(model, eager, torch.randn(5, 2))
    compare(model, eager, torch.randn(7, 2))
    compare(copy.deepcopy(model), eager, torch.randn(7, 2))


class Noting(nn.Module):
    """A layer that adds to a list which it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        seen.append(x)
        return self.linear(x)


class NotingLayers(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Noting() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.getcwd()  # no graph is made of the whole
        seen: list[torch.Tensor] = []
        for layer in self.layers:
            x = layer(x, seen)
        return torch.stack(seen).sum() + x.sum()


@pytest.mark.filterwarnings("ignore:.*runs partly in PyTorch")
def test_of_equal_layers_that_change_what_they_are_given_one_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    traces, export = [0], torch.export.export

    def counted(*args: Any, **kwargs: Any) -> Any:
        traces[0] += 1
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    found = []
    for layers in (1, 4):
        traces[0] = 0
        eager = NotingLayers(layers)
        model, x = ORTModule(copy.deepcopy(eager)), torch.randn(3, 4)
        for _ in range(2):
            losses = [m(x) for m in (model, eager)]
            torch.testing.assert_close(*losses)
            for loss in losses:
                loss.backward()
        assert_same_gradients(model, eager)
        found.append(traces[0])
    assert found[1] - found[0] == 3, "a trace for what each further layer holds, and none for the layer itself"
