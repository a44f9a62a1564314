"""Sequences and optionals at the surface: lists and None go in and come out; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, TypeProto, helper

import ortmodule
from ortmodule import _C, errors

node = helper.make_node
FLOAT = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
INT = helper.make_tensor_type_proto(TensorProto.INT64, [])
SEQUENCE = helper.make_sequence_type_proto(FLOAT)
OPTIONAL = helper.make_optional_type_proto(FLOAT)
OPTIONAL_SEQUENCE = helper.make_optional_type_proto(SEQUENCE)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, TypeProto], outputs: dict[str, TypeProto]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_value_info(k, v) for k, v in inputs.items()],
        [helper.make_value_info(k, v) for k, v in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def session(nodes: list[onnx.NodeProto], inputs: dict[str, TypeProto], outputs: dict[str, TypeProto]):
    return ortmodule.InferenceSession(model(nodes, inputs, outputs))


A, B = np.ones((2, 2), np.float32), np.zeros((3,), np.float32)


def test_lists_go_in_and_come_out() -> None:
    made = session([node("SequenceInsert", ["s", "x", "at"], ["y"])],
                   {"s": SEQUENCE, "x": FLOAT, "at": INT}, {"y": SEQUENCE})  # fmt: skip
    (y,) = made.run(None, {"s": [A, B], "x": B + 5, "at": np.array(0)})
    assert [v.tolist() for v in y] == [(B + 5).tolist(), A.tolist(), B.tolist()]
    (y,) = made.run(None, {"s": [], "x": A, "at": np.array(0)})
    assert len(y) == 1


def test_a_sequence_that_is_read_twice_is_not_changed() -> None:
    nodes = [node("SequenceErase", ["s"], ["t"]), node("SequenceInsert", ["s", "x"], ["u"])]
    made = session(nodes, {"s": SEQUENCE, "x": FLOAT}, {"t": SEQUENCE, "u": SEQUENCE})
    given = [A, B]
    t, u = made.run(None, {"s": given, "x": A})
    assert (len(t), len(u), len(given)) == (1, 3, 2)


@pytest.mark.parametrize(("kind", "value"), [(OPTIONAL, A), (OPTIONAL_SEQUENCE, [A, B])], ids=["tensor", "sequence"])
def test_none_goes_in_and_comes_out(kind: TypeProto, value) -> None:
    nodes = [node("Identity", ["o"], ["y"]), node("OptionalHasElement", ["o"], ["has"])]
    made = session(nodes, {"o": kind}, {"y": kind, "has": helper.make_tensor_type_proto(TensorProto.BOOL, [])})
    y, has = made.run(None, {"o": None})
    assert y is None and not has
    y, has = made.run(None, {"o": value})
    assert has and np.array_equal(y[0], value[0])


def test_a_loop_fills_a_sequence() -> None:
    names = ["i", "c", "s"]
    body = helper.make_graph(
        [node("SequenceInsert", ["s", "x"], ["s_out"]), node("Identity", ["c"], ["c_out"])],
        "body",
        [onnx.ValueInfoProto(name=n) for n in names],
        [onnx.ValueInfoProto(name=n) for n in ("c_out", "s_out")],
    )
    nodes = [node("SequenceEmpty", [], ["nothing"]), node("Loop", ["n", "", "nothing"], ["y"], body=body)]
    made = session(nodes, {"n": INT, "x": FLOAT}, {"y": SEQUENCE})
    assert [len(made.run(None, {"n": np.array(n), "x": A})[0]) for n in (0, 3)] == [0, 3]


def test_saved_stages_keep_the_types() -> None:
    nodes = [node("Optional", [], ["o"], type=SEQUENCE), node("OptionalHasElement", ["o"], ["h"]),
             node("SequenceAt", ["s", "at"], ["y"])]  # fmt: skip
    outputs = {"h": helper.make_tensor_type_proto(TensorProto.BOOL, []), "y": FLOAT}
    data = model(nodes, {"s": SEQUENCE, "at": INT}, outputs).SerializeToString()
    saved = _C.Session(data, "inference", [], {"keep_stages": True}).stage_model("resolved")
    proto = onnx.load_from_string(saved)
    assert proto.graph.input[0].type == SEQUENCE
    h, y = _C.Session(saved).run([[torch.ones(2), torch.zeros(3)], torch.tensor(1)])
    assert not h and torch.equal(y, torch.zeros(3))


def test_wrong_values_are_refused() -> None:
    made = session([node("SequenceAt", ["s", "at"], ["y"])], {"s": SEQUENCE, "at": INT}, {"y": FLOAT})
    at = np.array(0)
    with pytest.raises(errors.InvalidArgumentError, match="should be a list"):
        made.run(None, {"s": A, "at": at})
    with pytest.raises(errors.InvalidArgumentError, match="should hold tensors of type Float"):
        made.run(None, {"s": [A.astype(np.int64)], "at": at})
    with pytest.raises(errors.InvalidArgumentError, match="'at'"):
        made.run(None, {"s": [A], "at": None})
    for values, index in (([], 0), ([A], 1), ([A], -2)):
        with pytest.raises(errors.ORTModuleError, match=r"\[SequenceAt\] position"):
            made.run(None, {"s": values, "at": np.array(index)})
    engine = _C.Session(model([node("Neg", ["x"], ["y"])], {"x": FLOAT}, {"y": FLOAT}).SerializeToString())
    for wrong in ([torch.ones(2)], None, 3, "x"):
        with pytest.raises(errors.InvalidArgumentError):
            engine.run([wrong])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Neg", ["s"], ["y"])], r"\[Neg\] input 0 should be a tensor, got sequence_float"),
        ([node("SequenceAt", ["x", "at"], ["y"])], "should be a sequence, got float"),
        ([node("SequenceInsert", ["s", "at"], ["y"])], "should be a tensor of type float, got int64"),
        ([node("SequenceConstruct", ["x", "at"], ["y"])], "input 1 should be a tensor of type float"),
        ([node("Optional", [], ["y"])], "needs an input or the attribute 'type'"),
        ([node("SequenceConstruct", ["s"], ["y"])], "input 0 should be a tensor"),
    ],
)
def test_a_tensor_is_no_sequence_and_a_sequence_no_tensor(nodes: list[onnx.NodeProto], message: str) -> None:
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_value_info(k, v) for k, v in {"s": SEQUENCE, "x": FLOAT, "at": INT}.items()],
        [onnx.ValueInfoProto(name="y")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(errors.InvalidGraphError, match=message):
        _C.Session(proto.SerializeToString())


def test_a_gradient_through_a_sequence_is_refused() -> None:
    nodes = [node("SequenceConstruct", ["x", "x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    data = model(nodes, {"x": FLOAT}, {"y": FLOAT}).SerializeToString()
    with pytest.raises(errors.UnsupportedError, match="'y' goes through a sequence.*SequenceConstruct"):
        _C.Session(data, "training", ["x"])
    assert _C.Session(data, "training").run([torch.ones(2)])[0].shape == (4,)


def test_an_empty_optional_has_no_element() -> None:
    made = session([node("OptionalGetElement", ["o"], ["y"])], {"o": OPTIONAL}, {"y": FLOAT})
    assert np.array_equal(made.run(None, {"o": A})[0], A)
    with pytest.raises(errors.ORTModuleError, match="the optional is empty"):
        made.run(None, {"o": None})


@pytest.mark.parametrize("split", [[1, 1], [-1, 3], [5]])
def test_chunks_that_do_not_fit_the_axis_are_refused(split: list[int]) -> None:
    sizes = helper.make_tensor_type_proto(TensorProto.INT64, [None])
    made = session([node("SplitToSequence", ["x", "sizes"], ["y"])], {"x": FLOAT, "sizes": sizes}, {"y": SEQUENCE})
    with pytest.raises(errors.ORTModuleError, match=r"\[SplitToSequence\]"):
        made.run(None, {"x": A.reshape(4)[:3], "sizes": np.array(split)})
