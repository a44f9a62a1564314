"""The public checkers say yes to what is right and no to what is wrong."""

from __future__ import annotations

import pytest
import torch

from ortmodule import UnsupportedError
from ortmodule.testing import GradientChecker, OpTester


def test_op_tester_accepts_the_right_outputs() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    test = OpTester("Gemm").add_input(a).add_input(b, constant=True).add_input(c).add_attribute("transB", 1)
    (out,) = test.add_output(a @ b.T + c).run()
    assert out.shape == (3, 5)
    values, places = torch.tensor([1.0, 5.0, 3.0]).topk(2)
    k = torch.tensor([2])
    OpTester("TopK").add_input(torch.tensor([1.0, 5.0, 3.0])).add_input(k).add_output(values).add_output(places).run()


@pytest.mark.parametrize("wrong", [torch.full((2,), 1.001), torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_op_tester_refuses_wrong_values_shapes_and_types(wrong: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="output 0|Exp"):
        OpTester("Exp").add_input(torch.zeros(2)).add_output(wrong).run()


def test_op_tester_passes_on_the_engines_errors() -> None:
    with pytest.raises(UnsupportedError, match="NoSuchOperator"):
        OpTester("NoSuchOperator").add_input(torch.zeros(2)).add_output(None).run()


def test_gradient_checker_accepts_right_gradients() -> None:
    x, y = torch.rand(3, 4) + 0.5, torch.rand(4) + 0.5
    GradientChecker("Pow").check([x, y], reference=torch.pow)
    GradientChecker("Softmax", {"axis": 0}).check([x], reference=lambda v: v.softmax(0))
    GradientChecker("ReduceLogSumExp", constants=[1]).check([x, torch.tensor([1])])
    assert GradientChecker("MatMul", wrt=[1]).autograd_error([x, y.view(4, 1)], torch.matmul) < 1e-5


def test_gradient_checker_sees_a_wrong_gradient() -> None:
    x = torch.rand(3, 4) + 0.5
    with pytest.raises(AssertionError, match="autograd"):
        GradientChecker("Exp").check([x], reference=lambda v: 2 * v.exp())
    # Central differences across a kink differ from either side's derivative.
    assert GradientChecker("Relu").numeric_error([torch.tensor([1e-7])], step=1e-3) > 0.005
