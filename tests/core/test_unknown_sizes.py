"""Sizes that are known at run time only: two that may differ never go by one name, which would pass for equality."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule import _C

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ROWS = {
    "Split": (helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=0), {"x": (FLOAT, ["n", 4])}),
    "SplitTraining": (
        helper.make_node("SplitTraining", ["x", "sizes"], ["a", "b"], domain="com.microsoft", axis=0),
        {"x": (FLOAT, ["n", 4])},
    ),
    "MultiHeadAttention": (
        helper.make_node(
            "MultiHeadAttention", ["x", "k", "v"], ["", "a", "b"], domain="com.microsoft", num_heads=2
        ),
        {"x": (FLOAT, ["n", "s", 8]), "k": (FLOAT, ["n", "t", 8]), "v": (FLOAT, ["n", "t", 16])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_unknown_sizes_of_two_outputs_have_two_names(name: str) -> None:
    node, inputs = ROWS[name]
    given = [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in inputs.items()]
    if "sizes" in node.input:
        given.append(helper.make_tensor_value_info("sizes", INT64, [2]))
    results = [helper.make_tensor_value_info(key, FLOAT, None) for key in ("a", "b")]
    graph = helper.make_graph([node], "sizes", given, results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    session = _C.Session(model, "inference", [], {"device": "cpu", "keep_stages": True})
    resolved = onnx.load_model_from_string(session.stage_model("resolved"))
    names = [[d.dim_param for d in o.type.tensor_type.shape.dim if d.dim_param] for o in resolved.graph.output]
    assert not set(names[0]) & set(names[1]) - {"n", "s", "t"}, names
