"""If, Loop and Scan: nesting, captured values, shapes that change, gradients, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ortmodule
from ortmodule import _C, errors

node = helper.make_node


def body(name: str, inputs: list[str], nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, name, [onnx.ValueInfoProto(name=n) for n in inputs], [onnx.ValueInfoProto(name=n) for n in outputs]
    )


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: list[str],
    constants: dict[str, np.ndarray] | None = None,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def test_branches_may_give_different_shapes() -> None:
    branch = {
        "then_branch": body("then", [], [node("ReduceSum", ["x"], ["t"], keepdims=0)], ["t"]),
        "else_branch": body("else", [], [node("Neg", ["x"], ["e"])], ["e"]),
    }
    data = model([node("If", ["c"], ["y"], **branch)], {"c": (BOOL, []), "x": (FLOAT, ["n"])}, ["y"])
    session = _C.Session(data)
    x = torch.tensor([1.0, 2.0, 4.0])
    assert session.run([torch.tensor(True), x])[0] == 7
    assert torch.equal(session.run([torch.tensor(False), x])[0], -x)


def test_a_loop_sees_its_iteration_number_and_may_grow_what_it_carries() -> None:
    """v becomes [v, i] each time: its size changes, and the loop ends by its own condition."""
    inner = [
        node("Unsqueeze", ["i", "zero"], ["i1"]),
        node("Concat", ["v", "i1"], ["v_out"], axis=0),
        node("Less", ["i", "last"], ["go_on"]),
    ]
    nodes = [node("Loop", ["", "", "start"], ["y"], body=body("b", ["i", "c", "v"], inner, ["go_on", "v_out"]))]
    data = model(
        nodes,
        {"start": (INT, ["n"]), "last": (INT, [])},
        ["y"],
        {"zero": np.array([0])},
    )
    session = _C.Session(data)
    assert session.run([torch.tensor([7, 7]), torch.tensor(3)])[0].tolist() == [7, 7, 0, 1, 2, 3]
    assert session.run([torch.tensor([], dtype=torch.int64), torch.tensor(-1)])[0].tolist() == [0]


def nested(kind: str) -> list[onnx.NodeProto]:
    """for i < trips: v = v * w if sum(v) < bound else v - w, where w and bound come from the outermost graph."""
    branches = {
        "then_branch": body("then", [], [node("Mul", ["v", "w"], ["t"])], ["t"]),
        "else_branch": body("else", [], [node("Sub", ["v", "w"], ["e"])], ["e"]),
    }
    inner = [
        node("ReduceSum", ["v"], ["total"], keepdims=0),
        node("Less", ["total", "bound"], ["small"]),
        node("If", ["small"], ["v_out"], **branches),
    ]
    if kind == "loop":
        inner.append(node("Identity", ["c"], ["c_out"]))
        return [node("Loop", ["trips", "", "x"], ["y"], body=body("b", ["i", "c", "v"], inner, ["c_out", "v_out"]))]
    inner.append(node("Add", ["v_out", "s"], ["z"]))
    nodes = [node("Range", ["zero", "trips", "one"], ["slices"]), node("Cast", ["slices"], ["floats"], to=FLOAT)]
    return [
        *nodes,
        node(
            "Scan", ["x", "floats"], ["y", "zs"], num_scan_inputs=1, body=body("b", ["v", "s"], inner, ["v_out", "z"])
        ),
    ]


def nested_reference(x: torch.Tensor, w: torch.Tensor, trips: int, bound: float) -> torch.Tensor:
    for _ in range(trips):
        x = x * w if x.sum() < bound else x - w
    return x


@pytest.mark.parametrize("kind", ["loop", "scan"])
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_nested_subgraphs_read_and_differentiate_values_two_graphs_out(kind: str, trips: int) -> None:
    inputs = {"x": (FLOAT, ["n"]), "w": (FLOAT, ["n"]), "bound": (FLOAT, []), "trips": (INT, [])}
    constants = {"zero": np.array(0), "one": np.array(1)} if kind == "scan" else {}
    session = _C.Session(model(nested(kind), inputs, ["y"], constants), "training", ["x", "w"])
    x, w = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 3.0])
    ours, theirs = ([v.clone().requires_grad_() for v in (x, w)] for _ in range(2))
    (got,) = session.run([*ours, torch.tensor(9.0), torch.tensor(trips)])
    want = nested_reference(*theirs, trips, 9.0)
    torch.testing.assert_close(got, want)
    seed = torch.tensor([1.0, -2.0])
    grads = torch.autograd.grad(got, ours, seed, allow_unused=True)
    for g, e in zip(grads, torch.autograd.grad(want, theirs, seed, allow_unused=True)):
        torch.testing.assert_close(g, torch.zeros_like(g) if e is None else e)


def test_a_constant_outside_is_known_inside() -> None:
    """Reshape's sizes are captured; the declared shape of the result shows that the body knows them."""
    branch = {
        "then_branch": body("then", [], [node("Reshape", ["x", "sizes"], ["t"])], ["t"]),
        "else_branch": body("else", [], [node("Reshape", ["x", "sizes"], ["e"])], ["e"]),
    }
    data = model(
        [node("If", ["c"], ["y"], **branch)],
        {"c": (BOOL, []), "x": (FLOAT, [6])},
        ["y"],
        {"sizes": np.array([2, 3])},
    )
    session = _C.Session(data, "inference", [], {"keep_stages": True})
    (out,) = onnx.load_from_string(session.stage_model("resolved")).graph.output
    assert [d.dim_value for d in out.type.tensor_type.shape.dim] == [2, 3]
    assert session.run([torch.tensor(True), torch.ones(6)])[0].shape == (2, 3)


def test_saved_stages_hold_the_subgraphs() -> None:
    inputs = {"x": (FLOAT, ["n"]), "w": (FLOAT, ["n"]), "bound": (FLOAT, []), "trips": (INT, [])}
    session = _C.Session(model(nested("loop"), inputs, ["y"]), "inference", [], {"keep_stages": True})
    again = session.stage_model("optimized_pre_grad")
    onnx.checker.check_model(onnx.load_from_string(again))
    values = [torch.tensor([1.0, 2.0]), torch.tensor([1.5, 3.0]), torch.tensor(9.0), torch.tensor(4)]
    assert torch.equal(_C.Session(again).run(values)[0], session.run(values)[0])


def test_the_gradient_of_an_if_is_an_if_that_other_runtimes_know() -> None:
    branch = {
        "then_branch": body("then", [], [node("Mul", ["x", "x"], ["t"])], ["t"]),
        "else_branch": body("else", [], [node("Softmax", ["x"], ["e"])], ["e"]),
    }
    data = model([node("If", ["c"], ["y"], **branch)], {"c": (BOOL, []), "x": (FLOAT, ["n"])}, ["y"])
    session = _C.Session(data, "training", ["x"], {"keep_stages": True})
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    session.run([torch.tensor(True), x])[0].sum().backward()
    assert torch.equal(x.grad, 2 * x)
    proto = onnx.load_from_string(session.stage_model("optimized", portable=False))
    assert [n.op_type for n in proto.graph.node].count("If") == 2


def test_a_body_that_draws_numbers_is_not_differentiated() -> None:
    inner = [node("Dropout", ["v", "half", "yes"], ["v_out"]), node("Identity", ["c"], ["c_out"])]
    data = model(
        [node("Loop", ["trips", "", "x"], ["y"], body=body("b", ["i", "c", "v"], inner, ["c_out", "v_out"]))],
        {"x": (FLOAT, [4]), "trips": (INT, [])},
        ["y"],
        {"half": np.array(0.5, np.float32), "yes": np.array(True)},
    )
    assert _C.Session(data).run([torch.ones(4), torch.tensor(2)])[0].shape == (4,)
    with pytest.raises(errors.UnsupportedError, match=r"\[Loop\].*random operator \w*Dropout"):
        _C.Session(data, "training", ["x"])


REFUSED = {
    "condition of a wrong type": ([node("If", ["x"], ["y"], then_branch=body("t", [], [], ["x"]),
                                        else_branch=body("e", [], [], ["x"]))], "condition should be bool"),
    "outputs that a branch lacks": ([node("If", ["c"], ["y", "z"], then_branch=body("t", [], [], ["x"]),
                                          else_branch=body("e", [], [], ["x"]))], "has 2 outputs"),
    "a body with too few inputs": ([node("Loop", ["m", "", "x"], ["y"], body=body("b", ["i"], [], ["c"]))],
                                   "takes 1 inputs"),
    "a carried value that changes its type": (
        [node("Loop", ["m", "", "x"], ["y"],
              body=body("b", ["i", "k", "v"], [node("Cast", ["v"], ["w"], to=INT)], ["k", "w"]))],
        "float before an iteration and of type int64",
    ),
    "a branch that is no graph": ([node("If", ["c"], ["y"], then_branch=1, else_branch=1)], "then_branch"),
    "more scan inputs than inputs": (
        [node("Scan", ["x"], ["y"], num_scan_inputs=2, body=body("b", ["s"], [], ["s"]))], "num_scan_inputs is 2"),
    "a scan axis outside": (
        [node("Scan", ["x"], ["y"], num_scan_inputs=1, scan_input_axes=[1],
              body=body("b", ["s"], [node("Neg", ["s"], ["n"])], ["n"]))], "axis 1 is outside"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_named(what: str) -> None:
    nodes, message = REFUSED[what]
    inputs = {"c": (BOOL, []), "x": (FLOAT, ["n"]), "m": (INT, [])}
    with pytest.raises(errors.InvalidGraphError, match=message):
        _C.Session(model(nodes, inputs, [o for o in nodes[-1].output]))


def test_scan_inputs_of_different_lengths_fail_at_the_run() -> None:
    step = body("b", ["s", "t"], [node("Add", ["s", "t"], ["n"])], ["n"])
    nodes = [node("Scan", ["x", "z"], ["y"], num_scan_inputs=2, body=step)]
    session = ortmodule.InferenceSession(model(nodes, {"x": (FLOAT, ["n"]), "z": (FLOAT, ["k"])}, ["y"]))
    with pytest.raises(errors.ORTModuleError, match="lengths 2 and 3"):
        session.run(None, {"x": np.ones(2, np.float32), "z": np.ones(3, np.float32)})


def test_scan_of_version_8_has_a_batch_and_lengths() -> None:
    step = body("b", ["s", "t"], [node("Identity", ["t"], ["last"]), node("Identity", ["s"], ["before"])],
                ["last", "before"])  # fmt: skip
    nodes = [node("Scan", ["lengths", "x", "z"], ["y", "ys"], num_scan_inputs=1, directions=[1], body=step)]
    inputs = {"lengths": (INT, [2]), "x": (FLOAT, [2]), "z": (FLOAT, [2, 3])}
    proto = onnx.load_from_string(model(nodes, inputs, ["y", "ys"]))
    proto.opset_import[0].version = 8
    session = ortmodule.InferenceSession(proto)
    z = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    values = {"lengths": np.array([3, 2]), "x": np.array([7, 8], np.float32), "z": z}
    y, ys = session.run(None, values)
    assert y.tolist() == [1, 4]
    assert ys.tolist() == [[7, 3, 2], [8, 5, 0]]
    with pytest.raises(errors.ORTModuleError, match="a length of 4 of 3"):
        session.run(None, values | {"lengths": np.array([4, 1])})
