"""What autograd would see survives capture: custom Functions, no_grad, detach, checkpoint; hooks are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ortmodule.capture import capture
from ortmodule.errors import CaptureError

from .parity import assert_same_training, assert_valid, aten_nodes, operators


class Module(nn.Module):
    """A linear layer and a function of (module, x)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class TripledSquare(torch.autograd.Function):
    """x*x*k whose gradient is on purpose not the derivative."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x, None


class SplitContext(torch.autograd.Function):
    """Forward and setup_context apart; two outputs, one of them not differentiable; one gradient is None."""

    @staticmethod
    def forward(x, y, scale):
        return x * scale + y, (x > 0).to(torch.int64), "text"

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _, __):
        return g * ctx.scale * 5, None, None


def test_custom_function_keeps_its_own_gradient() -> None:
    module = Module(lambda m, x: TripledSquare.apply(m.linear(x), 3).sum())
    captured = capture(module, (torch.randn(4, 8),))
    assert_valid(captured)
    assert aten_nodes(captured) == {"ortmodule::python_op": 1}
    assert captured.needs_python[0].cls is TripledSquare
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_custom_function_with_several_outputs_and_missing_gradients() -> None:
    def forward(m, x):
        y, sign, text = SplitContext.apply(m.linear(x), x, 2.0)
        assert text == "text"
        return (y * sign).sum()

    module = Module(forward)
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert_same_training(captured, module, (torch.randn(4, 8),))
    assert_same_training(captured, module, (torch.randn(6, 8),))


def test_custom_function_that_takes_a_size_follows_it() -> None:
    module = Module(lambda m, x: TripledSquare.apply(m.linear(x), x.shape[0]).sum())
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert_same_training(captured, module, (torch.randn(7, 8),))


@pytest.mark.parametrize("recording", [True, False])
def test_custom_function_gives_what_asks_for_a_gradient_as_in_torch(recording: bool) -> None:
    asked: list[tuple[bool, bool]] = []

    def forward(m, x):
        y = TripledSquare.apply(m.linear(x), 1)
        asked.append((y.requires_grad, y.is_leaf))
        return y.sum()

    module = Module(forward)
    with torch.set_grad_enabled(recording):
        capture(module, (torch.randn(4, 8),))
        module(torch.randn(4, 8))
    assert len(set(asked)) == 1


def test_custom_function_in_place_writes_into_its_argument() -> None:
    class Dirty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    def forward(m, x):
        h = m.linear(x)
        return (Dirty.apply(h) * h).sum()

    module = Module(forward)
    captured = capture(module, (torch.randn(4, 8),))
    assert captured.needs_python[0].returned == {0: 0}
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_python_op_runs_through_the_dispatcher_with_autograd() -> None:
    module = Module(lambda m, x: TripledSquare.apply(m.linear(x), 3).sum())
    captured = capture(module, (torch.randn(4, 8),))
    x = torch.randn(4, 8, requires_grad=True)
    (y,) = torch.ops.ortmodule.python_op([x], captured.needs_python[0].fid)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach())
    with torch.no_grad():
        (y,) = torch.ops.ortmodule.python_op([x], captured.needs_python[0].fid)
    assert not y.requires_grad
    fid = captured.needs_python[0].fid
    del captured
    with pytest.raises(CaptureError, match="gone"):
        torch.ops.ortmodule.python_op([x], fid)


def test_apply_is_restored_after_a_capture() -> None:
    before = vars(torch.autograd.Function)["apply"]
    capture(Module(lambda m, x: m.linear(x)), (torch.randn(4, 8),))
    assert vars(torch.autograd.Function)["apply"] is before
    assert "lstm" not in vars(torch._VF)
    assert "__getattribute__" not in vars(nn.Module)


def no_grad_mean(m: Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        mean = m.linear(x).mean(0)
        with torch.enable_grad():
            mean = mean * 2
    return (m.linear(x) - mean).square().sum()


def no_grad_write(m: Module, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(8)
    with torch.no_grad():
        total.add_(m.linear(x).sum(0))
    return (m.linear(x) * total).sum()


def no_grad_result(m: Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        top = m.linear(x).argmax(-1)
        score = m.linear(x).max()
    return m.linear(x).sum(), score, top


def overridable(x: torch.Tensor, around: Callable[[], Any]) -> torch.Tensor:
    """Asks for overrides, as functions of torch and of libraries do, and goes on in Python."""
    if torch.overrides.has_torch_function_unary(x):
        return torch.overrides.handle_torch_function(overridable, (x,), x, around)
    least = x * 2
    with around():
        least.clamp_(min=0.2)
        product = least @ least.t()
    return least.square() + product.float().sum()


@pytest.mark.parametrize("around", [torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_inside_a_function_that_may_be_overridden_are_kept(around: Callable[[], Any]) -> None:
    module, x = Module(lambda m, x: overridable(m.linear(x), around)), torch.randn(5, 8)
    assert_same_training(capture(module, (x,)), module, (x,), loss=lambda r: r.sum())


def test_no_grad_block_stops_the_gradient() -> None:
    for forward in (no_grad_mean, no_grad_write):
        module = Module(forward)
        captured = capture(module, (torch.randn(4, 8),))
        assert "StopGradient" in operators(captured)
        assert_same_training(captured, module, (torch.randn(4, 8),))


@pytest.mark.parametrize(
    "convert",
    [lambda h: h.to(torch.float32), lambda h: h.float().contiguous(), lambda h: F.dropout(h, 0.0).type_as(h)],
    ids=["to", "contiguous", "dropout"],
)
def test_conversion_under_no_grad_to_what_a_tensor_is_already_keeps_its_gradient(convert: Callable[..., Any]) -> None:
    """It returns the tensor itself, which the trace calls by the new name from then on."""

    def forward(m: Module, x: torch.Tensor) -> torch.Tensor:
        h = m.linear(x)
        with torch.no_grad():
            scores = convert(h) * 2
        return (h * h * scores).sum()

    module = Module(forward)
    assert_same_training(capture(module, (torch.randn(4, 8),)), module, (torch.randn(4, 8),))


def test_result_of_a_no_grad_block_is_returned() -> None:
    module = Module(no_grad_result)
    captured = capture(module, (torch.randn(4, 8),))
    assert_valid(captured)
    assert_same_training(captured, module, (torch.randn(4, 8),), loss=lambda r: r[0] + r[1])


def test_detach_stops_the_gradient() -> None:
    module = Module(lambda m, x: (m.linear(x) - m.linear(x).detach() * 0.5).square().sum())
    captured = capture(module, (torch.randn(4, 8),))
    assert "StopGradient" in operators(captured)
    assert_same_training(captured, module, (torch.randn(4, 8),))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_region_is_marked_and_keeps_its_gradient(reentrant: bool) -> None:
    module = Module(lambda m, x: checkpoint(lambda t: F.relu(m.linear(t)), m.linear(x), use_reentrant=reentrant).sum())
    captured = capture(module, (torch.randn(4, 8),))
    marked = [n.op_type for n in captured.model.graph.node if any(p.key == "recompute" for p in n.metadata_props)]
    assert marked == ["Linear", "Relu"]
    assert_same_training(captured, module, (torch.randn(4, 8),))


def test_checkpoint_region_is_marked_under_autocast() -> None:
    module = Module(lambda m, x: checkpoint(lambda t: F.relu(m.linear(t)), m.linear(x), use_reentrant=False).sum())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(module, (torch.randn(4, 8),))
    marked = {n.op_type for n in captured.model.graph.node if any(p.key == "recompute" for p in n.metadata_props)}
    assert {"Linear", "Relu"} <= marked
    assert "Linear" in {n.op_type for n in captured.model.graph.node if not n.metadata_props}


def test_two_checkpoint_regions_are_told_apart() -> None:
    def forward(m, x):
        for _ in range(2):
            x = checkpoint(lambda t: F.relu(m.linear(t)), x, use_reentrant=False)
        return x.sum()

    captured = capture(Module(forward), (torch.randn(4, 8),))
    regions = [p.value for n in captured.model.graph.node for p in n.metadata_props if p.key == "recompute"]
    assert regions == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    "call",
    [
        lambda h: h.register_hook(lambda g: g * 5),
        lambda h: h.retain_grad(),
        lambda h: torch.autograd.grad(h.sum(), h),
        lambda h: torch.full((4,), 2.0, requires_grad=True),
        lambda h: h.new_zeros(4, requires_grad=True),
    ],
)
def test_hooks_and_inner_gradients_are_refused_with_the_line(call: Callable[[torch.Tensor], Any]) -> None:
    def forward(m, x):
        h = m.linear(x)
        call(h)
        return h.sum()

    with pytest.raises(CaptureError) as caught:
        capture(Module(forward), (torch.randn(4, 8),))
    assert "test_autograd_semantics.py" in (caught.value.source_line or "")


def test_backward_hook_on_a_module_is_refused() -> None:
    module = Module(lambda m, x: m.linear(x).sum())
    module.linear.register_full_backward_hook(lambda *a: None)
    with pytest.raises(CaptureError, match="'linear' has a backward hook"):
        capture(module, (torch.randn(4, 8),))
