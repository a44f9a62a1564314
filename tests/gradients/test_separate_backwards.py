"""Outputs of one call whose backward passes run apart: they run, and raise, where eager's do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn as nn

from tests.support import assert_same_gradients, exports, pair

Tensors = tuple[torch.Tensor, ...]
AGAIN = "a second time"


class Towers(nn.Module):
    def __init__(self, join: Callable[[Towers, torch.Tensor], Tensors]) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.right = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        self.join = join

    def forward(self, x: torch.Tensor) -> Tensors:
        return self.join(self, x)


def of_three(m: Towers, x: torch.Tensor) -> Tensors:
    left, right = m.left(x), m.right(x)
    return left.sin(), left.exp() + right.sin(), right.cos()


APART: dict[str, Callable[[Towers, torch.Tensor], Tensors]] = {
    "from the input": lambda m, x: (m.left(x), m.right(x)),
    "from a sum": lambda m, x: (m.left(x + 1), m.right(x + 1)),
    "through one weight": lambda m, x: (m.left(x), m.left(x.flip(0))),
    "one of a weight alone": lambda m, x: (m.left(x).square().mean(), m.right[0].weight.square().sum()),
}
TOGETHER: dict[str, Callable[[Towers, torch.Tensor], Tensors]] = {
    "one on top of the other": lambda m, x: ((h := m.left(x)).sin(), h.sum() + m.right(x).sum()),
    "by a product": lambda m, x: ((h := m.left(x)) + 1, h - 1),
    "by what is recomputed": lambda m, x: (m.left(h := x.tanh()), m.right(h)),
}


def backwards(module: nn.Module, x: torch.Tensor, order: Sequence[int], retain: Sequence[int] = ()) -> list[str]:
    """Runs the backward of each output of `order`; how each one ended."""
    outputs = module(x)
    ends = []
    for k in order:
        try:
            outputs[k].sum().backward(retain_graph=k in retain)
            ends.append("")
        except RuntimeError as error:
            ends.append(str(error))
    return ends


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1)])
@pytest.mark.parametrize("how", APART)
def test_outputs_that_share_nothing_have_a_backward_each(how: str, order: Sequence[int], fusion: bool) -> None:
    model, eager = pair(Towers(APART[how]), fusion=fusion)
    for _ in range(3):
        x = torch.randn(5, 4)
        xs = [x.clone().requires_grad_() for _ in range(2)]
        assert backwards(model, xs[0], order) == backwards(eager, xs[1], order)
        torch.testing.assert_close(xs[0].grad, xs[1].grad)
        assert_same_gradients(model, eager)
    assert exports(model) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("how", TOGETHER)
def test_outputs_that_share_a_saved_value_do_not(how: str, order: Sequence[int]) -> None:
    model, eager = pair(Towers(TOGETHER[how]))
    for _ in range(2):
        x = torch.randn(5, 4, requires_grad=True)
        before, after = backwards(eager, x, order)
        assert before == "" and AGAIN in after
        assert backwards(model, x, order) == [before, after]


@pytest.mark.parametrize("order", [(0, 2), (2, 0), (1, 0), (1, 2), (0, 2, 1)])
def test_an_output_that_meets_two_others_goes_with_neither(order: Sequence[int]) -> None:
    model, eager = pair(Towers(of_three))
    x = torch.randn(5, 4)
    expected = backwards(eager, x, order)
    assert backwards(model, x, order) == expected
    model.zero_grad()
    eager.zero_grad()
    fine = [k for k, end in zip(order, expected, strict=True) if not end]
    for module in (model, eager):
        backwards(module, x, fine)
    assert_same_gradients(model, eager)


def test_a_backward_that_raises_frees_nothing() -> None:
    """In eager it may have freed what it visited before the value that was gone."""
    model, eager = pair(Towers(of_three))
    x = torch.randn(5, 4)
    assert ["" if not end else AGAIN for end in backwards(model, x, (0, 1, 2))] == ["", AGAIN, ""]
    backwards(eager, x, (0, 2))
    assert_same_gradients(model, eager)


def test_two_backwards_at_once_count_as_both() -> None:
    model, eager = pair(Towers(of_three))
    for module in (model, eager):
        first, _, last = module(torch.ones(5, 4))
        (first.sum() + last.sum()).backward()
        for output in (first, last):
            with pytest.raises(RuntimeError, match=AGAIN):
                output.sum().backward()
    assert_same_gradients(model, eager)


def test_a_kept_graph_serves_all_outputs() -> None:
    model, eager = pair(Towers(of_three))
    x = torch.randn(5, 4)
    for module in (model, eager):
        assert backwards(module, x, (0, 1, 0, 2), retain=(0, 1)) == ["", "", "", ""]
    assert_same_gradients(model, eager)


def test_weights_may_change_between_the_backwards_of_towers() -> None:
    model, eager = pair(Towers(APART["from the input"]))
    x = torch.randn(5, 4)
    for module in (model, eager):
        optimizers = [torch.optim.SGD(tower.parameters(), lr=0.1) for tower in (module.left, module.right)]
        for output, optimizer in zip(module(x), optimizers, strict=True):
            output.square().mean().backward()
            optimizer.step()
        for ours in module.parameters():
            assert ours.grad is not None
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_weight_that_the_second_backward_reads_may_not_change() -> None:
    for module in pair(Towers(APART["from the input"])):
        left, right = module(torch.randn(5, 4))
        left.sum().backward()
        with torch.no_grad():
            module.right[2].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            right.sum().backward()


def test_a_backward_frees_what_no_other_output_reads() -> None:
    """What only the outputs that are done with read goes at once, though the call's other output lives on."""
    model, _ = pair(Towers(lambda m, x: (m.left(x), m.right[0].weight.square().sum())))
    for _ in range(2):
        x = torch.randn(5, 4)
        alive = weakref.ref(x)
        outputs = model(x)
        del x
        assert alive() is not None
        outputs[0].sum().backward()
        gc.collect()
        assert alive() is None
        outputs[1].backward()


def test_an_output_whose_backward_reads_nothing_may_have_any_number() -> None:
    model, eager = pair(Towers(lambda m, x: (m.left(x), x + m.right[0].bias[:4])))
    for module in (model, eager):
        ends = backwards(module, torch.ones(5, 4), (1, 1, 0, 0, 1))
        assert ["" if not end else AGAIN for end in ends] == ["", "", "", AGAIN, ""]
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_backward_in_segments_is_one_as_well(hooked: bool) -> None:
    """Hooks on leaves divide a large backward into a chain of nodes."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 2)) for _ in range(2)
            )

        def forward(self, x: torch.Tensor) -> Tensors:
            return tuple(tower(x) for tower in self.towers)

    model, eager = pair(Wide())
    if hooked:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: None)
    for _ in range(2):
        x = torch.randn(3, 8)
        for module in (model, eager):
            assert ["" if not end else AGAIN for end in backwards(module, x, (1, 1, 0, 0))] == ["", AGAIN, "", AGAIN]
        assert_same_gradients(model, eager)
