"""When a module is captured again, when it is not, and what the report says about it."""

from __future__ import annotations

import copy
import random
import time
import warnings

import pytest
import torch
import torch.nn as nn

import ortmodule
from ortmodule import CaptureError, Options, ORTModule
from ortmodule.capture.trace.patches.sizes import pace
from tests.support import Lambda, assert_same_gradients, exports, mlp, pair


def reasons(model: ORTModule) -> list[str]:
    return [e.reason for e in model.report().exports]


def check(model: nn.Module, eager: nn.Module, *args: torch.Tensor) -> None:
    """One training step of both; results and gradients are the same."""
    outs = []
    for module in (model, eager):
        module.zero_grad()
        out = module(*args)
        if out.requires_grad:
            out.square().mean().backward()
        outs.append(out.detach())
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)
    assert_same_gradients(model, eager)


def test_equal_calls_are_captured_once() -> None:
    model, eager = pair(mlp())
    for _ in range(3):
        check(model, eager, torch.randn(5, 4))
    assert reasons(model) == ["first call"]
    assert model.report().sessions[0].runs == 3


def test_many_sizes_take_two_exports() -> None:
    model, eager = pair(mlp())
    for batch in (5, 3, 8, 2, 5, 17, 3):
        check(model, eager, torch.randn(batch, 4))
    assert reasons(model) == ["first call", "size 0 of input 'input' changed from 5 to 3"]
    assert model.report().exports[1].dynamic != ()


@pytest.mark.parametrize("sizes", [(1, 4, 2, 1, 7), (4, 1, 2, 7, 1), (2, 3, 1)])
def test_a_size_of_one_takes_no_export_of_its_own(sizes: tuple[int, ...]) -> None:
    model, eager = pair(mlp())
    for rows in sizes:
        x = torch.randn(rows, 4)
        model(x).sum().backward()
        eager(x).sum().backward()
        assert_same_gradients(model, eager)
    assert exports(model) == 2


def test_sizes_of_which_one_is_one_in_either_call() -> None:
    model, eager = pair(Lambda(lambda m, x, y: (m.linear(x) @ m.linear(y).t()).square().sum()))
    for a, b in ((1, 3), (5, 1), (2, 2), (1, 1)):
        x, y = torch.randn(a, 4), torch.randn(b, 4)
        model(x, y).backward()
        eager(x, y).backward()
        assert_same_gradients(model, eager)
    assert exports(model) == 2


def test_many_random_sizes() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x).cumsum(1).softmax(1)[:, -1].square().sum()))
    draw = random.Random(0)
    for _ in range(100):
        x = torch.randn(draw.randint(1, 6), draw.randint(1, 9), 4)
        model(x).backward()
        eager(x).backward()
    assert_same_gradients(model, eager, atol=1e-4)
    assert exports(model) == 2


def test_there_and_back_again_takes_two_exports() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x).sum(0)))
    wide, deep = torch.randn(3, 4), torch.randn(2, 3, 4)
    for x in (wide, deep, wide, deep):
        check(model, eager, x)
    assert exports(model) == 2
    assert reasons(model)[1] == "input 'arg0' changed from float32[?, ?] to float32[?, ?, ?]"


@pytest.mark.parametrize("sizes", [(5, 1, 3, 1, 5), (1, 5, 3, 1)])
def test_a_batch_of_one_is_right_before_and_after_others(sizes: tuple[int, ...]) -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) + x.mean(0, keepdim=True)))
    for batch in sizes:
        check(model, eager, torch.randn(batch, 4))
    assert exports(model) <= 3


def test_two_sizes_that_were_equal_by_chance_may_part() -> None:
    model, eager = pair(Lambda(lambda m, x, y: m.linear(x).sum(0) * m.linear(y).sum(0)))
    for a, b in ((3, 3), (5, 5), (5, 7), (2, 9), (3, 3)):
        check(model, eager, torch.randn(a, 4), torch.randn(b, 4))
    assert exports(model) <= 3


def test_a_branch_on_a_size_follows_it() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) if x.shape[0] > 4 else m.linear(x) * 2))
    for batch in (3, 2, 6, 8, 3, 7):
        check(model, eager, torch.randn(batch, 4))


def test_train_and_eval_each_have_a_graph() -> None:
    model, eager = pair(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    x = torch.randn(5, 4)
    for mode in (True, False, True, False):
        model.train(mode)
        eager.train(mode)
        check(model, eager, x)
    assert reasons(model) == ["first call", "train/eval mode changed"]


def test_the_mode_of_one_sub_module_counts() -> None:
    model, eager = pair(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.BatchNorm1d(3)))
    x = torch.randn(5, 4)
    for frozen in (False, True, False):
        for module in (model, eager):
            module.get_submodule("0").train(not frozen)
        check(model, eager, x)
    assert exports(model) == 2


def test_autocast_on_and_off_each_have_a_graph() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            got, expected = model(x), eager(x)
        assert got.dtype == expected.dtype == (torch.bfloat16 if enabled else torch.float32)
        torch.testing.assert_close(got, expected)
    assert exports(model) == 2
    assert "autocast" in reasons(model)[1]


def scaled(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * m.scale


def test_a_changed_attribute_is_seen() -> None:
    module = Lambda(scaled)
    module.scale = 2.0
    model, eager = pair(module)
    x = torch.randn(3, 4)
    for value in (2.0, 3.0, 2.0, -1.0):
        model.scale = eager.scale = value
        check(model, eager, x)
    assert reasons(model)[1] == "the attribute scale changed from 2.0 to 3.0"
    assert exports(model) == 3


def test_an_attribute_of_a_sub_module_is_seen() -> None:
    model, eager = pair(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LeakyReLU(0.1)), dropout="torch")
    x = torch.randn(3, 4)
    for p, slope in ((0.5, 0.1), (0.0, 0.1), (0.0, 0.7)):
        for module in (model, eager):
            module.get_submodule("1").p = p
            module.get_submodule("2").negative_slope = slope
        torch.manual_seed(1)
        got = model(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, eager(x))


def test_requires_grad_of_a_parameter_takes_no_new_export() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for frozen in (False, True, False):
        for module in (model, eager):
            module.get_parameter("0.weight").requires_grad_(not frozen)
        check(model, eager, x)
    assert exports(model) == 1
    assert sorted(s.gradients for s in model.report().sessions) == [3, 4]


def test_requires_grad_of_an_input_takes_no_new_export() -> None:
    model, eager = pair(mlp())
    for wanted in (False, True, False):
        x, y = (torch.ones(5, 4).requires_grad_(wanted) for _ in range(2))
        model(x).sum().backward()
        eager(y).sum().backward()
        assert (x.grad is not None) == wanted
        if wanted:
            torch.testing.assert_close(x.grad, y.grad)
    assert exports(model) == 1


def test_grad_mode_takes_no_new_export() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            got = model(x)
        assert got.requires_grad == enabled
        torch.testing.assert_close(got, eager(x))
    assert exports(model) == 1


def test_inference_mode_gives_eagers_result() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    with torch.inference_mode():
        got = model(x)
        assert got.is_inference()
    torch.testing.assert_close(got.clone(), eager(x).detach())
    check(model, eager, x)


def test_replaced_parameters_are_used() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    check(model, eager, x)
    for module in (model, eager):
        module.get_submodule("0").weight = nn.Parameter(torch.full((8, 4), 0.3))
    check(model, eager, x)


def test_a_parameter_whose_data_was_replaced_is_used() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    check(model, eager, x)
    for module in (model, eager):
        module.get_parameter("0.weight").data = torch.full((8, 4), 0.3)
    check(model, eager, x)


def test_a_replaced_layer_is_used() -> None:
    model, eager = pair(mlp())
    x = torch.randn(5, 4)
    check(model, eager, x)
    for module in (model, eager):
        torch.manual_seed(3)
        inner = module.module if isinstance(module, ORTModule) else module
        inner[1] = nn.Sequential(nn.ReLU(), nn.Linear(8, 8))
    check(model, eager, x)


@pytest.mark.filterwarnings("ignore:Lambda runs in PyTorch")
def test_a_number_that_is_another_in_every_call_does_not_take_a_graph_each_for_ever() -> None:
    model, eager = pair(Lambda(lambda m, x, factor: m.linear(x) * factor), fallback="eager")
    x = torch.randn(2, 4)
    for step in range(24):
        torch.testing.assert_close(model(x, 0.5**step), eager(x, 0.5**step))
    assert exports(model) <= 16 and "too often" in str(model.report().fallback_reason)


def test_the_cache_is_bounded() -> None:
    model = ORTModule(Lambda(lambda m, x, k: m.linear(x) * k), options=Options(fallback="error", cache_size=2))
    for k in range(4):
        model(torch.ones(2, 4), k)
    assert len(model.report().sessions) == 2
    assert exports(model) == 4


def test_the_report_prints_what_it_knows() -> None:
    model, _ = pair(mlp())
    model(torch.ones(5, 4)).sum().backward()
    model(torch.ones(3, 4))
    text = str(model.report())
    for words in ("Sequential", "first call", "changed from 5 to 3", "training", "fallback   none", "peak"):
        assert words in text, text


class Chunked(nn.Module):
    """A number of chunks that is a tensor's value: with a symbolic size, only a question to the call tells it, which is
    not asked where a parameter has a part in it as well.
    """

    def __init__(self, with_parameter: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.with_parameter = with_parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.tensor(x.shape[1]).float()
        if self.with_parameter:
            length = length + 0 * self.layer.bias.detach().sum()
        count = int(torch.div(length, 2).floor().item())
        if count * 2 < x.shape[1]:
            x = x[:, : count * 2]
        return self.layer(x.reshape(x.shape[0], count, 8)[..., :4]).float().square().sum()


def test_a_forward_that_reads_its_sizes_from_data_has_a_graph_for_each_way() -> None:
    eager = Chunked(with_parameter=False)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for length in (4, 6, 5, 4, 6, 5, 8, 10, 7):
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(model(x), eager(x))


def test_a_forward_that_fixes_its_sizes_by_data_has_a_graph_for_each_of_a_few() -> None:
    eager = Chunked(with_parameter=True)
    model = ORTModule(copy.deepcopy(eager))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (4, 6, 5, 4, 6, 5, 8):
            x = torch.randn(3, length, 4)
            torch.testing.assert_close(model(x), eager(x))
    assert len(model.report().exports) == 4
    with pytest.warns(UserWarning, match="varying sizes"):
        x = torch.randn(3, 10, 4)
        torch.testing.assert_close(model(x), eager(x))


ortmodule.vouch(time.thread_time)  # a clock, which otherwise sends a forward to PyTorch


class HardSizes(nn.Module):
    """Takes its time wherever a width is symbolic, as torch does where the expressions for sizes have grown."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end = time.thread_time() + 1.5
        while isinstance(x.shape[self.axis], torch.SymInt) and time.thread_time() < end:
            pass
        return self.layer(x.movedim(self.axis, 1)).mean(1)


@pytest.mark.parametrize("axis", [1, 2])  # the first two axes of a tensor are symbolic wherever that goes
def test_sizes_that_are_too_hard_to_trace_are_fixed_and_the_batch_is_not(
    monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    def given(batch: int, width: int) -> torch.Tensor:
        return torch.randn(batch, width, 4).movedim(1, axis)

    monkeypatch.setattr(pace, "SECONDS", 1.0)
    model, eager = pair(HardSizes(axis))
    for batch, width in ((2, 5), (3, 6), (4, 6), (3, 7), (5, 7), (6, 6)):
        check(model, eager, given(batch, width))
    assert [e.dynamic for e in model.report().exports] == [(), ("x[0]",), ("x[0]",)]
    assert "take a graph each" in model.report().exports[1].specialized[0]
    check(model, eager, given(2, 8))
    with pytest.raises(CaptureError, match="it has 4 graphs already"):
        model(given(2, 9))


def test_sizes_none_of_which_can_be_traced_in_time_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SECONDS", 0.0)
    model, eager = pair(mlp())
    for batch in (2, 3, 2, 4):
        check(model, eager, torch.randn(batch, 4))
    assert [e.dynamic for e in model.report().exports] == [(), (), ()]
