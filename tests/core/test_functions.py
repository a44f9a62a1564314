"""Models with functions of their own: the engine runs them as if their bodies stood at the call."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, TensorProto, helper

import ortmodule
from ortmodule import errors

DOMAIN = "mine"
STANDARD = helper.make_opsetid("", 23)
OPSETS = [STANDARD, helper.make_opsetid(DOMAIN, 1)]
X = np.array([1.0, -2.0, 4.0], np.float32)
node = helper.make_node


def function(name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto], **more) -> FunctionProto:
    return helper.make_function(DOMAIN, name, inputs, outputs, nodes, more.pop("opsets", OPSETS), **more)


def call(name: str, inputs: list[str], outputs: list[str], **attributes) -> onnx.NodeProto:
    return node(name, inputs, outputs, domain=DOMAIN, **attributes)


def refer(proto: onnx.NodeProto, name: str, formal: str, kind: int) -> onnx.NodeProto:
    proto.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=formal, type=kind))
    return proto


def run(nodes: list[onnx.NodeProto], functions: list[FunctionProto], outputs: tuple[str, ...] = ("y",), **inputs):
    inputs = inputs or {"x": X}
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL}
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
    )
    model = helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=11)
    session = ortmodule.InferenceSession(model)
    assert [o.name for o in session.get_outputs()] == list(outputs)
    return session.run(None, inputs)


TWICE = function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])])


def test_calls_call_functions_that_call_functions() -> None:
    four = function("Four", ["a"], ["b"], [call("Twice", ["a"], ["t"]), call("Twice", ["t"], ["b"])])
    nodes = [call("Four", ["x"], ["h"]), call("Four", ["h"], ["y"])]
    np.testing.assert_array_equal(run(nodes, [TWICE, four])[0], 16 * X)


def test_inner_names_of_two_calls_stay_apart() -> None:
    inner = function("F", ["a"], ["b"], [node("Neg", ["a"], ["h"]), node("Mul", ["h", "a"], ["b"])])
    nodes = [call("F", ["x"], ["h"]), call("F", ["h"], ["y"])]
    np.testing.assert_array_equal(run(nodes, [inner])[0], -(X**4))


@pytest.mark.parametrize(("given", "slope"), [({"alpha": 0.5}, 0.5), ({}, 0.25)])
def test_attributes_come_from_the_call_or_the_default(given: dict[str, float], slope: float) -> None:
    leaky = function(
        "Leaky",
        ["a"],
        ["b"],
        [refer(node("LeakyRelu", ["a"], ["b"]), "alpha", "alpha", onnx.AttributeProto.FLOAT)],
        attribute_protos=[helper.make_attribute("alpha", 0.25)],
    )
    (y,) = run([call("Leaky", ["x"], ["y"], **given)], [leaky])
    np.testing.assert_allclose(y, np.where(X > 0, X, slope * X))


def test_an_attribute_that_nobody_gives_has_the_operators_default() -> None:
    concat = function(
        "S", ["a"], ["b"], [refer(node("LeakyRelu", ["a"], ["b"]), "alpha", "alpha", onnx.AttributeProto.FLOAT)]
    )
    np.testing.assert_allclose(run([call("S", ["x"], ["y"])], [concat])[0], np.where(X > 0, X, 0.01 * X))


def test_a_constant_may_be_an_attribute_and_reach_a_nested_function() -> None:
    inner = function(
        "Times",
        ["a"],
        ["b"],
        [
            refer(node("Constant", [], ["c"]), "value_float", "by", onnx.AttributeProto.FLOAT),
            node("Mul", ["a", "c"], ["b"]),
        ],
        attributes=["by"],
    )
    outer = function(
        "Outer", ["a"], ["b"], [refer(call("Times", ["a"], ["b"]), "by", "factor", onnx.AttributeProto.FLOAT)],
        attributes=["factor"],
    )  # fmt: skip
    np.testing.assert_allclose(run([call("Outer", ["x"], ["y"], factor=3.0)], [inner, outer])[0], 3 * X)
    with pytest.raises(errors.InvalidGraphError, match="'by' of function Times has no value"):
        run([call("Times", ["x"], ["y"])], [inner])


def test_optional_arguments_and_results_may_be_left_away() -> None:
    clip = function(
        "Bound", ["a", "low", "high"], ["b", "negative"],
        [node("Clip", ["a", "low", "high"], ["b"]), node("Neg", ["a"], ["negative"])],
    )  # fmt: skip
    high = np.array(2.0, np.float32)
    (y,) = run([call("Bound", ["x", "", "high"], ["y"])], [clip], x=X, high=high)
    np.testing.assert_array_equal(y, np.minimum(X, 2))
    (y,) = run([call("Bound", ["x"], ["", "y"])], [clip])
    np.testing.assert_array_equal(y, -X)


def test_functions_hold_subgraphs_and_subgraphs_call_functions() -> None:
    out = [onnx.ValueInfoProto(name="t")]
    then = helper.make_graph([call("Twice", ["a"], ["t"])], "then", [], out)
    other = helper.make_graph([node("Clip", ["a", "low"], ["t"])], "else", [], out)
    choose = function(
        "Choose", ["c", "a", "low"], ["b"], [node("If", ["c"], ["b"], then_branch=then, else_branch=other)]
    )
    for flag in (True, False):
        (y,) = run([call("Choose", ["c", "x"], ["y"])], [TWICE, choose], c=np.array(flag), x=X)
        np.testing.assert_array_equal(y, 2 * X if flag else X)


def test_results_may_be_arguments_and_constants() -> None:
    same = function(
        "Same", ["a"], ["b", "c"], [node("Identity", ["a"], ["b"]), node("Constant", [], ["c"], value_floats=[5.0])]
    )
    y, z = run([call("Same", ["x"], ["y", "z"])], [same], ("y", "z"))
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, [5.0])


def test_a_function_keeps_the_version_that_it_imports() -> None:
    old = function("Old", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opsets=[helper.make_opsetid("", 14)])
    np.testing.assert_array_equal(run([call("Old", ["x"], ["y"])], [old])[0], np.maximum(X, 0))


def test_a_function_that_calls_itself_is_refused() -> None:
    ping = function("Ping", ["a"], ["b"], [call("Pong", ["a"], ["b"])])
    pong = function("Pong", ["a"], ["b"], [call("Ping", ["a"], ["b"])])
    with pytest.raises(errors.InvalidGraphError, match="calls itself"):
        run([call("Ping", ["x"], ["y"])], [ping, pong])


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(errors.InvalidGraphError, match="Twice takes 1 inputs"):
        run([call("Twice", ["x", "x"], ["y"])], [TWICE])


def test_functions_that_double_each_other_do_not_exhaust_memory() -> None:
    functions = [function("F0", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])])]
    for i in range(1, 30):
        body = [call(f"F{i - 1}", ["a"], ["h"]), call(f"F{i - 1}", ["h"], ["b"])]
        functions.append(function(f"F{i}", ["a"], ["b"], body))
    with pytest.raises(errors.InvalidGraphError, match="more nodes than the limit"):
        run([call("F29", ["x"], ["y"])], functions)
