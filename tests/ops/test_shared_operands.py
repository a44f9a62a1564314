"""One intermediate value in several slots of a node: a kernel must not read an operand that it has written over."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from ortmodule import _C

X = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -4.0]], dtype=torch.float64)
INDICES = torch.tensor([[1, 0, 1], [0, 1, 0]])


def session_for(op: str, inputs: list[str]) -> _C.Session:
    """t = -x, y = op(t, t, ...); "t" in `inputs` is the shared value, "i" the integer graph input."""
    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        onnx.NodeProto(op_type=op, name="node", input=inputs, output=["y"]),
    ]
    graph_inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, X.shape)]
    if "i" in inputs:
        graph_inputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, INDICES.shape))
    graph = helper.make_graph(nodes, "shared", graph_inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 23)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return _C.Session(model.SerializeToString(), "training", ["x"])


CASES = [
    ("Sum", ["t"] * 2, lambda t: t + t),
    ("Sum", ["t"] * 3, lambda t: t + t + t),
    ("Sum", ["t"] * 5, lambda t: 5 * t),
    ("Add", ["t"] * 2, lambda t: t + t),
    ("Sub", ["t"] * 2, lambda t: t - t),
    ("Mul", ["t"] * 2, lambda t: t * t),
    ("Div", ["t"] * 2, lambda t: t / t),
    ("Max", ["t"] * 3, lambda t: t * 1),
    ("ScatterElements", ["t", "i", "t"], lambda t: t.scatter(0, INDICES, t)),
]


@pytest.mark.parametrize(("op", "inputs", "reference"), CASES, ids=[f"{c[0]}-{len(c[1])}" for c in CASES])
@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
def test_a_value_may_fill_several_slots(
    op: str, inputs: list[str], reference: Callable[[torch.Tensor], torch.Tensor], trained: bool
) -> None:
    ours, theirs = X.clone().requires_grad_(trained), X.clone().requires_grad_(trained)
    (got,) = session_for(op, inputs).run([ours, INDICES] if "i" in inputs else [ours])
    want = reference(-theirs)
    torch.testing.assert_close(got.detach(), want.detach())
    if trained:
        seed = torch.rand_like(X)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, seed)[0] for y, x in ((got, ours), (want, theirs))))
