"""What cannot be captured runs in PyTorch, is said once with its reason, or is an error where the user asks for one."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import CaptureError, Options, ORTModule
from tests.support import Lambda, mlp


def branch(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    if h.sum() > 0:
        return h * 2
    return h - 1


def test_a_branch_on_data_gives_eagers_result_with_one_warning() -> None:
    eager = Lambda(branch)
    model = ORTModule(Lambda(branch))
    with pytest.warns(UserWarning) as caught:
        for sign in (1.0, -1.0, 1.0):
            x = torch.full((2, 4), sign)
            torch.testing.assert_close(model(x), eager(x))
    ours = [str(w.message) for w in caught if "ORTModule" in str(w.message)]
    assert len(ours) == 1
    assert "runs in PyTorch" in ours[0]
    assert "test_fallback.py" in ours[0] and "if h.sum() > 0" in ours[0], "the line of the user's code"


def test_the_report_says_that_it_fell_back_and_why() -> None:
    model = ORTModule(Lambda(branch))
    with pytest.warns(UserWarning):
        model(torch.ones(2, 4)).sum().backward()
    report = model.report()
    assert report.fallback == "whole" and report.sessions == ()
    assert "test_fallback.py" in report.fallback_reason
    assert "whole" in str(report)
    assert model.linear.weight.grad is not None


def test_fallback_error_raises_with_reason_and_line() -> None:
    model = ORTModule(Lambda(branch), options=Options(fallback="error"))
    for _ in range(2):
        with pytest.raises(CaptureError) as caught:
            model(torch.ones(2, 4))
    assert caught.value.reason
    assert "if h.sum() > 0" in caught.value.source_line


def test_an_error_of_the_users_forward_is_the_users_error() -> None:
    def failing(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("a bug in the forward")

    model = ORTModule(Lambda(failing))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="a bug in the forward"):
            model(torch.ones(2, 4))
    model.function = lambda m, x: m.linear(x)
    model(torch.ones(2, 4))
    assert model.report().fallback == "none", "the mended forward runs in the engine"


def test_a_wrong_shape_is_the_error_that_eager_raises() -> None:
    model = ORTModule(mlp())
    model(torch.ones(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.ones(2, 5))


def test_one_bad_call_does_not_take_the_engine_away_from_good_ones() -> None:
    model = ORTModule(mlp())
    x = torch.randn(2, 4)
    model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
    model(x)
    assert model.report().sessions[0].runs == 2


class Metres(torch.Tensor):
    """A class with a behavior of its own: results are of it too, and addition is not what it is."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.nn.functional.linear else result


@pytest.mark.filterwarnings("ignore:.*runs in PyTorch")
def test_a_parameter_of_a_tensor_class_of_its_own_is_left_to_pytorch() -> None:
    module = mlp()
    eager, model = copy.deepcopy(module), ORTModule(module)
    x = torch.randn(5, 4)
    for step in range(6):
        for one in (model, eager):
            if step == 2:
                one[0].weight = nn.Parameter(one[0].weight.detach().as_subclass(Metres))
            elif step == 4:
                one[0].weight = nn.Parameter(one[0].weight.detach().as_subclass(torch.Tensor))
            one.zero_grad()
        results = [one(x) for one in (model, eager)]
        assert type(results[0]) is type(results[1])
        torch.testing.assert_close(*results)
        for result in results:
            result.sum().backward()
        torch.testing.assert_close(model[2].weight.grad, eager[2].weight.grad)
    assert "Metres" in str(model.report().fallback_reason)


def test_other_modules_are_not_touched_by_a_fallback() -> None:
    bad, good = ORTModule(Lambda(branch)), ORTModule(mlp())
    with pytest.warns(UserWarning):
        bad(torch.ones(2, 4))
    good(torch.ones(2, 4))
    assert (bad.report().fallback, good.report().fallback) == ("whole", "none")


def test_a_forward_that_collects_python_values_runs_in_pytorch_and_collects_real_ones() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        m.history.append(h.detach())
        return h

    module = Lambda(forward)
    module.history = []
    model = ORTModule(module)
    with pytest.warns(UserWarning, match="history"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    assert len(module.history) == 3
    assert all(type(h) is torch.Tensor and torch.equal(h, module.history[0]) for h in module.history)


class Switching(torch.nn.Module):
    """A forward that changes one of its settings, or counts; `changes`: at how many calls."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.changes, self.kind = torch.nn.Linear(4, 4), changes, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind < self.changes:
            self.kind += 1
        return self.linear(x) * (self.kind + 1)


@pytest.mark.parametrize(("changes", "captures", "warned", "fallback"), [(1, 3, 0, "none"), (9, 3, 1, "whole")])
def test_a_value_that_settles_after_the_first_call_is_left_behind_and_a_counter_is_not_followed(
    changes: int, captures: int, warned: int, fallback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortmodule.graph_transition import attempts as ways

    calls = []
    capture = ways.capture_once
    monkeypatch.setattr(ways, "capture_once", lambda *args, **kwargs: (calls.append(1), capture(*args, **kwargs))[1])
    model, eager = ORTModule(Switching(changes)), Switching(changes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (2, 2, 3, 2):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(model(x), eager(x))
            assert model.kind == eager.kind
    assert len([w for w in caught if "changes Python" in str(w.message)]) == warned
    assert len(calls) == captures, "one with the change, one without; the third size makes a graph of any size"
    assert model.report().fallback == fallback


class Deep(nn.Module):
    """Ends Python's stack in a trace, in the midst of what torch has switched off for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._guards.detect_fake_mode([x]) is not None:
            error: Any = RecursionError("maximum recursion depth exceeded")
            error.left = torch._C._ExcludeDispatchKeyGuard(torch._C._dispatch_keyset_full())
            error.left.__enter__()
            raise error
        return self.linear(x)


def test_a_trace_that_ends_pythons_stack_leaves_gradients_on() -> None:
    model = ORTModule(Deep())
    with pytest.warns(UserWarning, match="RecursionError"):
        result = model(torch.ones(2, 4))
    gc.collect()
    assert result.requires_grad and model.module.linear(torch.ones(2, 4)).requires_grad


def test_a_call_that_fails_leaves_what_it_has_written_up_to_there() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        y = m.linear(x * 1.0)
        x.add_(1)
        return torch.nn.functional.linear(y + x, torch.eye(4), bias["value"])

    bias = {"value": torch.ones(4)}
    model = ORTModule(Lambda(forward))
    model(torch.zeros(3, 4))
    bias["value"] = torch.tensor([2, 3, 4, 5])  # of another type than a trace minds
    for call in (model, model.module, model):
        x = torch.zeros(3, 4)
        with pytest.raises(RuntimeError, match="^self and mat2 must have the same dtype"):
            call(x)
        assert torch.equal(x, torch.ones(3, 4))
