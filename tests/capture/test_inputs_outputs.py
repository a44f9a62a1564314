"""Arguments and results of any structure: dataclasses, constants, None, duplicates, results that are inputs."""

from __future__ import annotations

import dataclasses
import typing

import torch
import torch.nn as nn

from ortmodule.capture import capture

from .parity import assert_same_training, assert_valid, call
from .test_autograd_semantics import Module


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    extra: torch.Tensor | None = None


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_unregistered_dataclass_result() -> None:
    module = Module(lambda m, x: Result(m.linear(x).sum()))
    captured = capture(module, (torch.randn(4, 8),))
    result = call(captured, module, (torch.randn(4, 8),))
    assert isinstance(result, Result) and result.extra is None
    assert_same_training(captured, module, (torch.randn(4, 8),), loss=lambda r: r.loss)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float


def test_unregistered_dataclass_argument() -> None:
    module = Module(lambda m, batch: (m.linear(batch.x) * batch.scale).sum())
    captured = capture(module, (Batch(torch.randn(4, 8), 3.0),))
    assert captured.user_inputs == [(0, "x.x")]
    assert [v for _, v in captured.baked] == [3.0]
    assert_same_training(captured, module, (Batch(torch.randn(4, 8), 3.0),))


class Structured(nn.Module):
    def forward(self, a, pair, *rest, flag=True, options=None, **more):
        y = a * 2 + pair.x - pair.y
        for extra in rest:
            y = y + extra
        return {
            "y": y,
            "twice": [y, y],
            "flag": flag,
            "none": None,
            "a": a,
            "shape": tuple(a.shape),
            "more": more["z"] * options["k"],
        }


def test_nested_arguments_and_results() -> None:
    args = (torch.randn(3), Point(torch.randn(3), torch.randn(3)), torch.randn(3), torch.randn(3))
    kwargs = dict(z=torch.randn(3), options={"k": torch.randn(3), "name": "n"}, flag=False)
    captured = capture(Structured(), args, kwargs)
    assert_valid(captured)
    assert [n for _, n in captured.user_inputs] == ["a", "pair.x", "pair.y", "arg2", "arg3", "z", "options.k"]
    result = call(captured, Structured(), args, kwargs)
    expected = Structured()(*args, **kwargs)
    assert result.keys() == expected.keys()
    assert result["a"] is args[0] and result["flag"] is False and result["none"] is None and result["shape"] == (3,)
    assert result["twice"][0] is result["twice"][1]
    for key in ("y", "more"):
        torch.testing.assert_close(result[key], expected[key])


def test_result_that_is_a_parameter_or_a_copy_of_an_input() -> None:
    module = Module(lambda m, x: (m.linear.weight, x.clone(), x.view(-1), torch.ones(3)))
    captured = capture(module, (torch.randn(4, 8),))
    assert_valid(captured)
    assert captured.outputs[0].kind == "input" and captured.outputs[0].name == "linear.weight"
    assert [o.kind for o in captured.outputs[1:]] == ["tensor"] * 3


def test_size_in_the_result_follows_the_input() -> None:
    module = Module(lambda m, x: (m.linear(x), x.shape[0] * 2))
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert captured.outputs[1].kind == "size"
    assert call(captured, module, (torch.randn(7, 8),))[1] == 14


def test_same_tensor_given_twice() -> None:
    module = Module(lambda m, pair: (m.linear(pair[0]) + pair[1]).sum())
    x = torch.randn(4, 8)
    captured = capture(module, ([x, x],))
    assert [n for _, n in captured.user_inputs] == ["x.0", "x.1"]
    again = torch.randn(4, 8)
    assert_same_training(captured, module, ([again, again],))  # it holds for such calls


def test_object_with_tensors_in_the_result_is_made_anew() -> None:
    class Plain:
        def __init__(self, t):
            self.t = t

    module, x = Module(lambda m, x: Plain(m.linear(x))), torch.randn(4, 8)
    result = call(capture(module, (x,)), module, (x,))
    assert type(result) is Plain
    torch.testing.assert_close(result.t, module.linear(x))


def test_a_module_keeps_its_own_name_for_an_input_of_the_same_name() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add = nn.Parameter(torch.ones(3))

        def forward(self, add):
            return (self.add + add).sum()

    captured = capture(Clash(), (torch.randn(3),))
    assert captured.parameters == ["add"] and captured.user_inputs == [(0, "input.add")]
    assert_same_training(captured, Clash(), (torch.randn(3),))
