"""Forward hooks of sub-modules run in Python at each call, on real tensors, whatever they do."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from tests.support import assert_same_gradients, pair


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.linear(x)))


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compare(model: nn.Module, eager: nn.Module) -> None:
    x = torch.randn(3, 4)
    got, want = model(x), eager(x)
    torch.testing.assert_close(got, want)
    for module, out in ((model, got), (eager, want)):
        module.zero_grad()
        out.square().sum().backward()
    assert_same_gradients(model, eager)


def test_a_hook_that_collects_features_gets_those_of_each_call() -> None:
    eager = blocks()
    model = ORTModule(copy.deepcopy(eager))
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    model.module[1].register_forward_hook(lambda m, args, out: ours.append(out.detach()))
    eager[1].register_forward_hook(lambda m, args, out: theirs.append(out.detach()))
    for _ in range(3):
        compare(model, eager)
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs):
        assert type(a) is torch.Tensor
        torch.testing.assert_close(a, b)
    assert model.report().fallback == "partial", "the other blocks run in the engine"
    assert "the variable ours around" in (model.report().fallback_reason or "")


@pytest.mark.parametrize("where", [0, 2])
def test_hooks_that_change_inputs_and_outputs_do_so(where: int) -> None:
    model, eager = ORTModule(blocks()), blocks()
    compare(model, eager)
    for module in (model.module, eager):
        module[where].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        module[where].register_forward_hook(lambda m, args, out: out * 2)
    for _ in range(2):
        compare(model, eager)


def test_a_hook_of_the_wrapped_module_itself_runs() -> None:
    model, eager = ORTModule(blocks()), blocks()
    seen: list[int] = []
    model.module.register_forward_hook(lambda m, args, out: seen.append(1))
    for _ in range(3):
        compare(model, eager)
    assert len(seen) == 3


def test_without_the_hook_the_whole_module_runs_in_the_engine_again() -> None:
    model, eager = ORTModule(blocks()), blocks()
    handle = model.module[0].register_forward_hook(lambda m, args, out: None)
    compare(model, eager)
    handle.remove()
    compare(model, eager)
    compare(model, eager)
    whole = [s for s in model.report().sessions if s.gradients == 12]
    assert [s.runs for s in whole] == [2]


def test_hooks_of_torch_itself_are_part_of_the_graph() -> None:
    model, eager = pair(blocks())
    for block in (*model.module, *eager):
        nn.utils.weight_norm(block.linear)
    for _ in range(3):
        compare(model, eager)
    assert model.report().fallback == "none"
