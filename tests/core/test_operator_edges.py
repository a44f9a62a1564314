"""Odd inputs of operators: nothing, a number, integers where floats are usual, and what cannot be right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from ortmodule import _C, errors

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def session_of(op, inputs, outputs=1, **attributes):
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="it", **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, inputs)
    ]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    graph = helper.make_graph([node], "g", infos, results)
    return _C.Session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]).SerializeToString())


def run(op, inputs, outputs=1, **attributes):
    session = session_of(op, inputs, outputs, **attributes)
    return [y.numpy() for y in session.run([torch.from_numpy(np.array(x)) for x in inputs])]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("ReduceMax", (X[:, :0], np.array([1])), {}, np.full((3, 1), -np.inf, np.float32)),
        ("ReduceMin", (np.zeros((0, 2), np.int32),), {"keepdims": 0}, np.array(2**31 - 1, np.int32)),
        ("ReduceMax", (np.zeros((2, 0), bool), np.array([1])), {"keepdims": 0}, np.array([False, False])),
        ("ReduceMean", (np.array([1, 2, 4]),), {"keepdims": 0}, np.array(2)),
        ("ReduceL2", (np.array([3, 4], np.int32),), {}, np.array([5], np.int32)),
        ("ArgMax", (np.array(7.0, np.float32),), {}, np.array(0)),
        ("TopK", (np.array([1.0, 2.0, 2.0, 2.0]), np.array([2])), {"outputs": 2}, np.array([2.0, 2.0])),
        ("ScatterND", (X, np.zeros((0, 1), np.int64), X[:0]), {"reduction": "max"}, X),
    ],
)
def test_the_edge_has_a_value(op, inputs, attributes, expected):
    got = run(op, inputs, **attributes)[0]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_equal_values_come_in_the_order_of_their_positions():
    x = np.array([[3.0, 5.0, 5.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    _, positions = run("TopK", (x, np.array([3])), 2)
    np.testing.assert_array_equal(positions, [[1, 2, 4], [0, 1, 2]])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"),
    [
        ("ScatterND", (X, np.array([[0, 7]]), X[0, :1]), {"reduction": "mul"}, ["ScatterND", "outside"]),
        ("Range", (np.array(1), np.array(5), np.array(0)), {}, ["Range", "delta"]),
        ("Pad", (X, np.array([1, 1, 1])), {}, ["Pad", "3 pads"]),
        ("Pad", (X, np.array([-5, 0, 0, 0])), {"mode": "edge"}, ["Pad", "lose"]),
        ("TopK", (X, np.array([9])), {"outputs": 2}, ["TopK", "K is 9"]),
        ("MaxPool", (X.reshape(1, 1, 3, 4),), {"kernel_shape": [2, 2], "strides": [0, 1]}, ["MaxPool", "positive"]),
        ("Conv", (X.reshape(1, 1, 3, 4), X[None, None, :2, :2]), {"dilations": [1, -1]}, ["Conv", "positive"]),
    ],
)
def test_what_cannot_be_right_is_refused(op, inputs, attributes, words):
    with pytest.raises(errors.ORTModuleError) as caught:
        run(op, inputs, **attributes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_seeded_dropout_starts_alike_in_every_session_and_goes_on():
    inputs = (np.ones(1000, np.float32), np.array(0.3, np.float32), np.array(True))
    values = [torch.from_numpy(x.copy()) if x.shape else torch.tensor(x[()]) for x in inputs]
    first, second = session_of("Dropout", inputs, seed=5), session_of("Dropout", inputs, seed=5)
    a, b, c = first.run(values)[0], second.run(values)[0], first.run(values)[0]
    torch.testing.assert_close(a, b)
    assert not torch.equal(a, c)
    assert abs(float((a != 0).float().mean()) - 0.7) < 0.06
