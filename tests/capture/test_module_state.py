"""What a forward reads and writes besides its arguments: buffers, attributes, tied weights, random state, autocast."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from ortmodule import CaptureError, ORTModule
from ortmodule.capture import capture
from tests.support import assert_same_gradients, mlp, pair

from .parity import assert_same_training, assert_valid, aten_nodes, operators
from .test_autograd_semantics import Module

X = (4, 8)


def test_batch_norm_statistics_are_mutations() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(1))
    module(torch.randn(2, 3, 6, 6))
    captured = capture(module, (torch.randn(2, 3, 6, 6),))
    assert_valid(captured)
    assert [(k, t) for _, k, t in captured.mutations] == [
        ("buffer", "1.num_batches_tracked"),
        ("buffer", "1.running_mean"),
        ("buffer", "1.running_var"),
    ]
    assert "functionalize" not in captured.seconds and not aten_nodes(captured)
    assert_same_training(captured, module, (torch.randn(2, 3, 6, 6),), loss=torch.sum)


def test_batch_norm_called_twice_updates_its_statistics_twice() -> None:
    module = Module(lambda m, x: (m.norm(m.linear(x)) * m.norm(x)).square().sum())
    module.norm = nn.BatchNorm1d(8)
    assert_same_training(capture(module, (torch.randn(X),)), module, (torch.randn(X),))


def test_evaluation_mode_is_captured_as_it_is() -> None:
    module = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    captured = capture(module, (torch.randn(X),))
    assert not captured.mutations and "Dropout" not in operators(captured)
    assert_same_training(captured, module, (torch.randn(X),), loss=torch.sum)


def test_capture_leaves_buffers_and_gradients_alone() -> None:
    module = nn.BatchNorm1d(8)
    capture(module, (torch.randn(X),))
    assert torch.equal(module.running_mean, torch.zeros(8)) and int(module.num_batches_tracked) == 0
    assert all(p.grad is None for p in module.parameters())


def counted(m: Module, x: torch.Tensor) -> torch.Tensor:
    m.n += 1
    return (m.linear(x) * m.n).sum()


def test_buffer_changed_by_an_operator_is_written_back() -> None:
    module = Module(counted)
    module.register_buffer("n", torch.zeros(()))
    captured = capture(module, (torch.randn(X),))
    assert [(k, t) for _, k, t in captured.mutations] == [("buffer", "n")]
    for _ in range(3):
        assert_same_training(captured, module, (torch.randn(X),))
    assert int(module.n) == 3


def moving_average(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    with torch.no_grad():
        m.n.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return (h * m.n).sum()


def test_moving_average_under_no_grad() -> None:
    module = Module(moving_average)
    module.register_buffer("n", torch.zeros(8))
    captured = capture(module, (torch.randn(X),))
    assert "functionalize" not in captured.seconds
    assert_same_training(captured, module, (torch.randn(X),))


def test_write_into_an_input_is_a_mutation_and_returns_the_same_tensor() -> None:
    module = Module(lambda m, x: (m.linear(x.add_(1)).sum(), x))
    captured = capture(module, (torch.randn(X),))
    assert [(k, t) for _, k, t in captured.mutations] == [("input", 0)]
    assert (captured.outputs[1].kind, captured.outputs[1].flat_index) == ("input", 0)
    assert_same_training(captured, module, (torch.randn(X),), loss=lambda r: r[0] + r[1].sum())


def partial_writes(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    h[:, 0] = 0
    h[1].mul_(2)
    h[1:3, 2:] += x[1:3, 2:]
    return h.square().sum()


def read_after_view(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    flat = h.view(-1)
    h.mul_(2)
    return flat.sum()


def parts_of_a_part(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    row = h[1]
    for start in (1, 2):
        row[start::3] = h[2, start::3] + row[start::3].sum()
    row[4:][1:3].mul_(2)
    return torch.cat((row, row)).square().sum() + h.sum()


@pytest.mark.parametrize("forward", [partial_writes, read_after_view, parts_of_a_part])
def test_writes_into_views(forward) -> None:
    module = Module(forward)
    captured = capture(module, (torch.randn(X),), dynamic_dims={(0, 0)})
    assert_valid(captured)
    assert ("functionalize" in captured.seconds) == (forward is read_after_view)
    assert_same_training(captured, module, (torch.randn(X),))
    assert_same_training(captured, module, (torch.randn(6, 8),))


def selected_then_whole(m: Module, x: torch.Tensor) -> torch.Tensor:
    h = m.linear(x)
    row = h[0]
    row[2:5] = 1.0
    h.mul_(3)
    return (h * h[:, 0:1]).sum() + row.sum()


def test_alias_read_after_a_later_write_sees_it() -> None:
    module = Module(selected_then_whole)
    assert_same_training(capture(module, (torch.randn(X),)), module, (torch.randn(X),))


def test_write_into_a_view_of_an_input_reaches_the_input() -> None:
    def forward(m, x):
        x[0].zero_()
        return m.linear(x).sum()

    module = Module(forward)
    captured = capture(module, (torch.randn(X),))
    assert [(k, t) for _, k, t in captured.mutations] == [("input", 0)]
    assert_same_training(captured, module, (torch.randn(X),))


def test_tied_weight_is_one_input() -> None:
    module = nn.ModuleDict({"a": nn.Embedding(8, 8), "b": nn.Linear(8, 8, bias=False)})
    module["b"].weight = module["a"].weight

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return self.parts["b"](self.parts["a"](i)).square().sum()

    captured = capture(Tied(), (torch.arange(5),))
    assert captured.parameters == ["parts.a.weight"]
    assert_same_training(captured, Tied(), (torch.arange(5),))


def test_unused_parameters_are_no_inputs() -> None:
    module = Module(lambda m, x: F.linear(x, m.linear.weight).sum())
    captured = capture(module, (torch.randn(X),))
    assert captured.parameters == ["linear.weight"]
    assert_same_training(captured, module, (torch.randn(X),))


def test_plain_tensor_attribute_is_a_constant_input() -> None:
    module = Module(lambda m, x: (m.linear(x) * m.table).sum())
    module.table = torch.arange(8.0)
    captured = capture(module, (torch.randn(X),))
    assert list(captured.constants) == ["table"] and captured.constants["table"] is module.table
    assert_same_training(captured, module, (torch.randn(X),))


def test_no_weight_is_in_the_model() -> None:
    module = Module(lambda m, x: m.big(m.linear(x)).sum())
    module.big = nn.Linear(8, 10000)
    assert capture(module, (torch.randn(X),)).model.ByteSize() < 5000


def noisy(m: Module, x: torch.Tensor) -> torch.Tensor:
    return (F.dropout(m.linear(x), 0.5) * random.random() + torch.rand_like(x) * numpy.random.rand()).sum()


@pytest.mark.parametrize(
    "forward", [noisy, lambda m, x: F.dropout(m.linear(x), 0.5).sum()], ids=["refused", "captured"]
)
def test_capture_leaves_every_random_generator_alone(forward: Callable[..., torch.Tensor]) -> None:
    module = Module(forward)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    with pytest.raises(CaptureError, match="draws") if forward is noisy else contextlib.nullcontext():
        capture(module, (torch.randn(X, generator=torch.Generator().manual_seed(0)),))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()


def test_the_example_batch_is_not_kept_alive() -> None:
    x = torch.randn(X)
    alive = weakref.ref(x)
    captured = capture(Module(lambda m, x: m.linear(x).sum()), (x,))
    del x
    gc.collect()
    assert alive() is None and captured.parameters


def bf16_inside(m: Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = m.linear(x)
        with torch.autocast("cpu", enabled=False):
            h = h.float() * 2
    return h.sum()


def test_autocast_inside_forward_becomes_casts() -> None:
    module = Module(bf16_inside)
    captured = capture(module, (torch.randn(X),))
    assert operators(captured).count("Cast") >= 3
    assert_same_training(captured, module, (torch.randn(X),))


def test_autocast_around_the_call_becomes_casts() -> None:
    module = Module(lambda m, x: F.layer_norm(m.linear(F.gelu(m.linear(x))), (8,)).sum())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(module, (torch.randn(X),))
    assert_valid(captured)
    assert "functionalize" not in captured.seconds and "ATen" not in operators(captured)
    linear = next(n for n in captured.model.graph.node if n.op_type == "Linear")
    types = {v.name: v.type.tensor_type.elem_type for v in captured.model.graph.value_info}
    assert types[linear.output[0]] == 16
    x = torch.randn(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = module(x)
    expected.backward()
    wanted = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    from .parity import call

    got = call(captured, module, (x,))
    got.backward()
    torch.testing.assert_close(got, expected)
    for p, w in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, w)
    assert torch.is_autocast_enabled("cpu") is False


def test_tensor_made_in_the_forward_needs_no_functionalization() -> None:
    module = Module(lambda m, x: (m.linear(x) * torch.tensor(0.5)).sum())
    captured = capture(module, (torch.randn(4, 8),))
    assert "functionalize" not in captured.seconds
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_detach_in_place_stops_the_gradient() -> None:
    def forward(m: Module, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        kept = h * 2
        h.detach_()
        return (kept * h).sum()

    module = Module(forward)
    captured = capture(module, (torch.randn(4, 8),))
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_detach_in_place_behind_a_view_in_place_stops_the_gradient() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = x * 3
            h.t_()
            h.detach_()
            return h, x + 1

    model = ORTModule(Turned())
    for _ in range(2):
        x = torch.randn(2, 4, requires_grad=True)
        turned, more = model(x)
        assert not turned.requires_grad and more.requires_grad
        torch.testing.assert_close(turned, 3 * x.detach().t())


def test_an_argument_that_stands_for_a_tensor() -> None:
    class Stand:
        @classmethod
        def __torch_function__(
            cls, function: object, types: object, args: object = (), kwargs: object = None
        ) -> object:
            return torch.tensor(2.0)

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor, other: object) -> torch.Tensor:
            return x * (torch.sum(other) if torch.overrides.has_torch_function_unary(other) else 5.0)  # type: ignore

    model = ORTModule(Asking())
    x = torch.randn(2, 4)
    for other, factor in ((Stand(), 2), (3.0, 5), (Stand(), 2)):
        torch.testing.assert_close(model(x, other), factor * x)


def test_attribute_that_the_forward_only_sets_is_noted() -> None:
    def forward(m: Module, x: torch.Tensor) -> torch.Tensor:
        m.rows = x.shape[1] + 1
        m.kind, m.columns = "linear", x.shape[1]
        m.columns *= 2
        return m.linear(x).sum() / m.columns

    module = Module(forward)
    module.kind = "linear"
    captured = capture(module, (torch.randn(4, 8),))
    assert captured.changed_attributes == []
    left = {one.name: [ref.value for ref in one.leaves] for one in captured.left}
    assert left == {"rows": [9], "kind": ["linear"], "columns": [16]}
    assert not hasattr(module, "rows")


class OnlyTrained(nn.Linear):
    """Frozen parameters are not its trainer's matter."""

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        named = super().named_parameters(*args, **kwargs)  # type: ignore[arg-type]
        return iter([(name, p) for name, p in named if p.requires_grad])


@pytest.mark.parametrize("kind", ["frozen", "a checkpoint's wrapper", "a model within one"])
def test_parameters_that_a_class_tells_otherwise(kind: str) -> None:
    inner = {"frozen": OnlyTrained(4, 4), "a checkpoint's wrapper": nn.Linear(4, 4), "a model within one": mlp()}[kind]
    if kind == "frozen":
        inner.bias.requires_grad_(False)
    model, eager = pair(inner if kind == "frozen" else checkpoint_wrapper(inner))
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in eager.named_parameters()]
    for _ in range(2):
        x = torch.randn(2, 4)
        result, expected = model(x), eager(x)
        torch.testing.assert_close(result, expected)
        result.square().sum().backward()
        expected.square().sum().backward()
        assert_same_gradients(model, eager)
