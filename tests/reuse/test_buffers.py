"""Buffers that a forward writes are written, in every call, as in eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from tests.behavior.table import tensors
from tests.support import Lambda, assert_same_gradients, exports, pair


def assert_same_buffers(model: nn.Module, eager: nn.Module) -> None:
    for (name, b), c in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(b, c, msg=lambda m, n=name: f"{n}: {m}")


def conv() -> nn.Module:
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=0.3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norms[0], nn.ReLU(), norms[1], nn.Flatten())


def test_batch_norm_statistics_follow_eagers() -> None:
    model, eager = pair(conv())
    held = dict(model.named_buffers())
    for batch in (4, 6, 2, 4):
        x = torch.randn(batch, 3, 6, 6)
        for module in (model, eager):
            module.zero_grad()
            module(x).square().mean().backward()
        assert_same_buffers(model, eager)
        assert_same_gradients(model, eager)
    assert int(model.get_buffer("1.num_batches_tracked")) == 4
    assert all(b is held[n] for n, b in model.named_buffers()), "buffers are written in place"


class Twins(nn.Module):
    """Two names of one branch with batch norm; how often it runs, and through which name, is said by `calls`."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.first = conv()[:4]
        self.second = self.first
        self.third = nn.BatchNorm2d(4)
        self.third.running_mean = self.first[1].running_mean  # a buffer of two modules
        self.head = nn.Linear(4, 2)
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ys = [getattr(self, name)(x) for name in self.calls.split()]
        y = self.third(sum(ys)) if "third" not in self.calls else sum(ys)
        return self.head(y.mean((2, 3))) + self.second[1].running_var.sum() + self.third.running_mean.sum()


@pytest.mark.parametrize("calls", ["first", "second", "first second", "second first second"])
def test_a_branch_under_two_names_has_one_set_of_statistics(calls: str) -> None:
    model, eager = pair(Twins(calls))
    for batch in (4, 6, 3):
        x = torch.randn(batch, 3, 6, 6)
        for module in (model, eager):
            module.zero_grad()
        ys = [module(x) for module in (model, eager)]
        torch.testing.assert_close(*ys)
        for y in ys:
            y.square().mean().backward()
        assert_same_buffers(model, eager)
        assert_same_gradients(model, eager)
    assert model.get_buffer("first.1.running_mean") is model.get_buffer("third.running_mean")


def test_statistics_count_as_unchanged_for_a_backward_in_pytorch() -> None:
    model, eager = pair(conv())
    x, other = torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)
    losses = [model.module(x).square().mean(), eager(x).square().mean()]
    for module, loss in zip((model, eager), losses, strict=True):
        module(other).square().mean().backward()
        loss.backward()
    assert_same_gradients(model, eager)
    versions = [[b._version for b in module.buffers()] for module in (model, eager)]
    assert versions[0] == versions[1]


def test_evaluation_uses_and_keeps_the_statistics() -> None:
    model, eager = pair(conv())
    x = torch.randn(4, 3, 6, 6)
    for module in (model, eager):
        module(x)
        module.eval()
    before = [b.clone() for b in model.buffers()]
    torch.testing.assert_close(model(x), eager(x))
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def test_statistics_are_updated_without_gradients_too() -> None:
    model, eager = pair(conv())
    with torch.no_grad():
        for module in (model, eager):
            module(torch.ones(4, 3, 6, 6))
    assert_same_buffers(model, eager)
    assert model.report().sessions[0].mode == "inference"


def test_a_backward_between_two_forwards_sees_its_own_statistics() -> None:
    model, eager = pair(conv())
    first, second = torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)
    for module in (model, eager):
        loss = module(first).square().mean()
        module(second)
        loss.backward()
    assert_same_gradients(model, eager)


def counter(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table += 1
    return m.linear(x) * m.table.sum().detach()


def test_a_buffer_that_counts_calls_counts_them() -> None:
    model, eager = pair(Lambda(counter))
    for _ in range(3):
        torch.testing.assert_close(model(torch.ones(2, 4)), eager(torch.ones(2, 4)))
    assert_same_buffers(model, eager)
    assert exports(model) == 1


def averaged(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = 0.9 * m.table + 0.1 * x.mean(0)
    return m.linear(x) + m.table


def first_in(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = torch.cat([m.linear(x).mean(0)[:1], m.table[:-1]]).detach()
    return m.linear(x) * m.table


def exchanged(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table, m.other = m.other + 1, m.table
    return m.linear(x) * m.table


@pytest.mark.parametrize("forward", [averaged, first_in, exchanged])
def test_a_buffer_that_the_forward_assigns_anew_has_its_new_values(forward: Any) -> None:
    module = Lambda(forward)
    module.register_buffer("other", torch.zeros(4))
    model, eager = pair(module)
    for size in (2, 2, 3, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(model(x), eager(x))
        assert_same_buffers(model, eager)
    assert exports(model) == 2


def kept(m: Lambda, x: torch.Tensor) -> Any:
    before = m.table.clone()
    row = before.view(2, 2)
    y = m.linear(x) * before
    m.table.add_(1)
    return y, before, row, y * row.flatten()


def written_across(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    before = m.table.clone()
    m.table.copy_(m.other + 1)
    m.other.copy_(before)
    return m.linear(x) * before


@pytest.mark.parametrize("forward", [kept, written_across])
def test_a_clone_keeps_what_was_there_before_a_write(forward: Any) -> None:
    module = Lambda(forward)
    module.register_buffer("other", torch.zeros(4))
    model, eager = pair(module)
    for _ in range(3):
        x = torch.randn(2, 4)
        for one in (model, eager):
            one.zero_grad()
        for mine, wanted in zip(tensors(model(x)), tensors(eager(x)), strict=True):
            torch.testing.assert_close(mine, wanted)
        assert_same_buffers(model, eager)
        for one in (model, eager):
            tensors(one(x))[0].sum().backward()
        assert_same_gradients(model, eager)
        assert_same_buffers(model, eager)


def longer(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    m.table = torch.cat([m.table, m.table])
    return m.linear(x) + m.table.sum()


def registered(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(m, "made"):
        m.register_buffer("made", torch.arange(4.0))
    return m.linear(x) * m.made


@pytest.mark.filterwarnings("ignore:Lambda runs in PyTorch")
@pytest.mark.parametrize(("forward", "fallback"), [(longer, "whole"), (registered, "none")])
def test_a_buffer_that_gets_another_shape_is_left_to_pytorch_and_a_new_one_its_first_call(
    forward: Any, fallback: str
) -> None:
    model, eager = pair(Lambda(forward), fallback="eager")
    for call in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(model(x), eager(x))
        assert_same_buffers(model, eager)
        report = model.report()
        assert report.fallback == (fallback if call else "whole")
        assert report.fallback == "none" or "cannot repeat" in str(report.fallback_reason)


def test_a_replaced_buffer_is_used_and_written() -> None:
    model, eager = pair(Lambda(counter))
    for module in (model, eager):
        module(torch.ones(2, 4))
        module.table = torch.full((4,), 10.0)
        module(torch.ones(2, 4))
    assert torch.equal(model.table, torch.full((4,), 11.0))
    assert_same_buffers(model, eager)


def test_loading_statistics_takes_effect_without_a_new_export() -> None:
    model, eager = pair(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    for module in (model, eager):
        module.eval()
    x = torch.randn(3, 4)
    model(x)
    state = {**eager.state_dict(), "0.running_mean": torch.arange(4.0)}
    for module in (model, eager):
        module.load_state_dict(state)
    torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 1


def test_an_empty_buffer_takes_the_size_that_its_operator_gives_it() -> None:
    class Observed(nn.Linear):
        """A weight quantized per channel while training: the observed range starts with no element."""

        def __init__(self) -> None:
            super().__init__(4, 3)
            on, one = torch.ones(1, dtype=torch.int64), torch.ones(3)
            for name, value in (("on", on), ("low", torch.empty(0)), ("high", torch.empty(0)), ("scale", one)):
                self.register_buffer(name, value)
            self.register_buffer("zero", torch.zeros(3, dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.fused_moving_avg_obs_fake_quant(
                self.weight, self.on, self.on, self.low, self.high, self.scale, self.zero, 0.1, -128, 127, 0, True, True
            )  # fmt: skip
            return nn.functional.linear(x, weight, self.bias)

    torch.manual_seed(0)
    model, eager = pair(Observed())
    for batch in (2, 2, 3):
        x = torch.randn(batch, 4)
        for module in (model, eager):
            module.zero_grad()
            module(x).square().mean().backward()
        assert_same_buffers(model, eager)
        assert_same_gradients(model, eager)
        with torch.no_grad():
            for p in (*model.parameters(), *eager.parameters()):
                p.mul_(1.5)
    assert model.get_buffer("low").shape == (3,)


class WritesScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.mul_(1.5)
        return self.linear(x) + self.scale


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_written_buffer_that_becomes_a_view_of_a_weight() -> None:
    torch.manual_seed(0)
    module = WritesScale()
    other = copy.deepcopy(module)
    wrapped, x = ORTModule(module), torch.ones(2, 4)
    for step in range(5):
        if step == 2:
            for one in (module, other):
                one.scale = one.linear.weight.detach()[0]
        with torch.no_grad():
            torch.testing.assert_close(wrapped(x), other(x))
        torch.testing.assert_close(module.linear.weight, other.linear.weight)


def test_an_equal_frozenset_that_each_forward_sets_is_another_object() -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.kinds = nn.Linear(4, 4), frozenset({nn.ReLU})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kinds = frozenset({nn.ReLU})
            return self.linear(x).sum()

    for module in (Kinds(), ORTModule(Kinds())):
        seen = []
        for _ in range(3):
            module(torch.ones(2, 4)).backward()
            seen.append(module.kinds)
        assert len({id(one) for one in seen}) == 3
