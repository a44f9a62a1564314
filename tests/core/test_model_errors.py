"""Models that are broken in one way each reach Python as the right kind of error, and the message names the place."""

from __future__ import annotations

import random

import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule import _C, errors


def model_of(nodes, *, inputs=None, opset=23, initializers=(), shape=None):
    inputs = inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", opset)])


def compile_model(model):
    return _C.Session(model if isinstance(model, bytes) else model.SerializeToString())


def relu(source="x", target="y", **kwargs):
    return helper.make_node("Relu", [source], [target], **kwargs)


def test_a_sound_model_compiles():
    session = compile_model(model_of([relu()]))
    assert session.input_names == ["x"]
    assert session.output_names == ["y"]


@pytest.mark.parametrize(
    ("nodes", "kind", "words"),
    [
        pytest.param([relu("missing", name="act")], errors.InvalidGraphError, ["missing", "act"], id="missing value"),
        pytest.param([relu("a", "y"), relu("y", "a")], errors.InvalidGraphError, ["cycle"], id="cycle"),
        pytest.param([relu(), relu()], errors.InvalidGraphError, ["'y'", "once"], id="assigned twice"),
        pytest.param(
            [helper.make_node("Rellu", ["x"], ["y"])], errors.UnsupportedError, ["Rellu", "Relu"], id="unknown"
        ),
        pytest.param(
            [helper.make_node("MatMul", ["x"], ["y"], name="mm")], errors.InvalidGraphError, ["mm"], id="arity"
        ),
        pytest.param(
            [helper.make_node("Softmax", ["x"], ["y"], axis="last", name="sm")],
            errors.InvalidGraphError,
            ["axis", "sm"],
            id="attribute kind",
        ),
    ],
)
def test_the_error_names_the_place(nodes, kind, words):
    with pytest.raises(kind) as caught:
        compile_model(model_of(nodes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_mixed_element_types_are_refused():
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [4]),
    ]
    with pytest.raises(errors.InvalidGraphError, match="sum"):
        compile_model(model_of([helper.make_node("Add", ["x", "i"], ["y"], name="sum")], inputs=inputs))


def test_a_tensor_with_too_few_bytes_is_refused():
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 12)
    with pytest.raises(errors.InvalidGraphError, match="'w'.*16 bytes, got 12"):
        compile_model(model_of([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[weight]))


def test_a_tensor_that_asks_for_terabytes_is_refused_at_once():
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40], raw_data=b"\0" * 4)
    with pytest.raises(errors.InvalidGraphError, match="limit"):
        compile_model(model_of([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[weight]))


@pytest.mark.parametrize("opset", [0, 99])
def test_other_opsets_are_unsupported(opset):
    with pytest.raises(errors.UnsupportedError, match=str(opset)):
        compile_model(model_of([relu()], opset=opset))


def test_garbage_names_the_byte():
    with pytest.raises(errors.InvalidGraphError, match="byte"):
        compile_model(b"this is text, not a model")


def test_no_truncation_and_no_changed_byte_does_worse_than_an_error():
    whole = model_of([relu("x", "h"), relu("h", "y")]).SerializeToString()
    rng = random.Random(7)
    mutants = [whole[:n] for n in range(len(whole))]
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] = rng.randrange(256)
        mutants.append(bytes(changed))
    refused = 0
    for mutant in mutants:
        try:
            compile_model(mutant)
        except errors.InternalError:
            raise
        except errors.ORTModuleError:
            refused += 1
    assert refused > len(whole) // 2


def test_what_a_stage_writes_passes_the_checker():
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [0.5] * 8)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("LeakyRelu", ["h"], ["y"], alpha=0.1)]
    session = _C.Session(
        model_of(nodes, initializers=[weight], shape=["batch", 2]).SerializeToString(),
        "training",
        ["x"],
        {"keep_stages": True},
    )
    for stage in session.stage_names():
        try:
            written = session.stage_model(stage)
        except errors.InvalidArgumentError:  # a stage that makes no graph
            continue
        model = onnx.load_model_from_string(written)
        assert model.ir_version == 11
        onnx.checker.check_model(model)
