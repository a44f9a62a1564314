"""The ATen fallback node carries every kind of schema argument there and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.torch_version import TorchVersion

from ortmodule.capture import capture
from ortmodule.errors import CaptureError

from .parity import assert_same_training, assert_valid, call
from .test_autograd_semantics import Module


def arguments_of(captured) -> list[str]:
    (node,) = [n for n in captured.model.graph.node if n.op_type == "ATen"]
    return next([s.decode() for s in a.strings] for a in node.attribute if a.name == "arguments")


CASES = {
    "rot90": (lambda m, x: m.linear(x).rot90(2, [0, -1]), ["t", "i:2", "I:0,-1"]),
    "quantile": (lambda m, x: m.linear(x).quantile(0.5, 0, keepdim=True), ["t", "f:0.5", "i:0", "b:1", "-"]),
    "pad": (
        lambda m, x: torch.nn.functional.pad(m.linear(x), (1, 1), mode="reflect"),
        ["t", "I:1,1", "s:reflect", "-"],
    ),
    "renorm": (lambda m, x: m.linear(x).renorm(2, 0, 1.5), ["t", "c:i:2", "i:0", "c:f:1.5"]),
    "index": (lambda m, x: m.linear(x)[:, torch.arange(8) > 3], ["t", "Tnt"]),
    "logcumsumexp": (lambda m, x: m.linear(x).logcumsumexp(1), ["t", "i:1"]),
    "roll": (lambda m, x: m.linear(x).roll(x.shape[0]), ["t", "I:s", "-"]),
    "nansum": (lambda m, x: m.linear(x).nansum(dtype=torch.float64), ["t", "-", "-", "d:11"]),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_of_every_kind(name: str) -> None:
    if name == "quantile" and TorchVersion(torch.__version__) < (2, 12):
        pytest.skip("torch 2.11's quantile takes no symbolic sizes")
    function, expected = CASES[name]
    module = Module(function)
    captured = capture(module, (torch.randn(4, 8),), dynamic_dims={(0, 0)})
    assert_valid(captured)
    found = arguments_of(captured)
    assert ["I:s" if t.startswith("I:s") else t for t in found] == expected
    for size in (4, 6):
        assert_same_training(captured, module, (torch.randn(size, 8),), loss=torch.sum)


def test_operator_of_another_library_runs_through_aten() -> None:
    library = torch.library.Library("ortmodule_tests", "FRAGMENT")
    library.define("twice(Tensor x, float[] factors, bool[] flags) -> (Tensor, Tensor)")
    library.impl("twice", lambda x, factors, flags: (x * factors[0], x * factors[1]), "CompositeExplicitAutograd")
    torch.library.register_fake(
        "ortmodule_tests::twice", lambda x, f, flags: (torch.empty_like(x), torch.empty_like(x)), lib=library
    )
    module = Module(lambda m, x: torch.ops.ortmodule_tests.twice(x, [0.1, 2.0], [True, False])[1])
    captured = capture(module, (torch.randn(3),))
    assert arguments_of(captured) == ["t", "F:0.1,2.0", "B:1,0"]
    torch.testing.assert_close(call(captured, module, (torch.ones(3),)), torch.full((3,), 2.0))


def test_a_condition_on_data_that_nobody_may_ask_about_is_refused() -> None:
    module = Module(lambda m, x: torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)))
    with pytest.raises(CaptureError, match="data-dependent"):
        capture(module, (torch.randn(4, 8),))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randint_like(x, 9),
        lambda x: torch.randint_like(x, 2, 5),
        lambda x: x.clone().bernoulli_(0.5),
        lambda x: x.clone().bernoulli_(torch.full((4, 8), 0.5)),
    ],
)
def test_no_gradient_goes_to_what_a_random_tensor_is_only_like(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In eager they are leaves; the operators that a trace has for them have no derivative."""
    module = Module(lambda m, x: m.linear(x) * draw(x))
    assert_same_training(capture(module, (torch.randn(4, 8),)), module, (torch.randn(4, 8),), loss=torch.sum)
