"""QDQ form: the same numbers here and in the stock package, near the float model's, and nothing else changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmodule
from ortmodule import InferenceSession
from ortmodule.quantization import CalibrationMethod, QuantType, quantize_static
from tests.sessions.models import F, model_of

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def network(opset: int = 20) -> onnx.ModelProto:
    """Convolution, a branch that is read twice, products with both forms of weights; two outputs of quantised nodes."""
    node = helper.make_node
    made = model_of(
        [
            node("Conv", ["x", "k", "kb"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"], name="relu"),
            node("GlobalAveragePool", ["r"], ["p"], name="pool"),
            node("Flatten", ["p"], ["f"], name="flatten"),
            node("Gemm", ["f", "g", "gb"], ["h"], name="gemm", transB=1),
            node("Tanh", ["h"], ["t"], name="tanh"),
            node("MatMul", ["t", "m"], ["y"], name="product"),
            node("Add", ["y", "h"], ["z"], name="sum"),
        ],
        {"x": (F, ["n", 3, 8, 8])},
        {"y": (F, ["n", 10]), "z": (F, ["n", 10])},
        {
            "k": random(6, 3, 3, 3), "kb": random(6), "g": random(10, 6), "gb": random(10), "m": random(10, 10),
        },
    )  # fmt: skip
    made.opset_import[0].version = opset
    return made


MODEL = network()
DATA = [{"x": random(8, 3, 8, 8)} for _ in range(4)]


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("activation", "weight"),
    [(QuantType.QUInt8, QuantType.QInt8), (QuantType.QInt8, QuantType.QInt8), (QuantType.QUInt8, QuantType.QUInt8)],
    ids=["u8s8", "s8s8", "u8u8"],
)
def test_it_runs_here_and_elsewhere_near_the_float_model(
    activation: QuantType, weight: QuantType, per_channel: bool, tmp_path: Path
) -> None:
    path = tmp_path / "quantized.onnx"
    made = quantize_static(
        MODEL, path, DATA, activation_type=activation, weight_type=weight, per_channel=per_channel,
        activation_symmetric=activation is QuantType.QInt8,
    )  # fmt: skip
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(ops(made))
    feeds = DATA[0]
    ours = InferenceSession(path).run(None, feeds)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(str(path), plain, providers=["CPUExecutionProvider"]).run(None, feeds)
    exact = InferenceSession(MODEL).run(None, feeds)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        step = np.ptp(c) / 255
        assert np.abs(a - b).max() <= 2.01 * step  # a code's rounding may fall to either side
        assert np.abs(a - c).max() < 0.1 * np.ptp(c)


def test_weights_are_integers_and_the_float_ones_are_gone() -> None:
    made = quantize_static(MODEL, None, DATA, per_channel=True)
    types = {t.name: t.data_type for t in made.graph.initializer}
    assert not {"k", "g", "m"} & set(types)
    assert [types[name] for name in types if name.endswith("_quantized")] == [TensorProto.INT8] * 3
    scales = {t.name: numpy_helper.to_array(t).shape for t in made.graph.initializer if t.name.endswith("_scale")}
    assert (scales["k_along_0_scale"], scales["g_along_0_scale"], scales["m_along_1_scale"]) == ((6,), (10,), (10,))


def test_inputs_and_outputs_keep_their_names_and_types() -> None:
    made = quantize_static(MODEL, None, DATA)
    assert made.graph.input == MODEL.graph.input and made.graph.output == MODEL.graph.output
    assert ops(MODEL) == ops(network())  # the given model is as it was


def test_nodes_and_operators_that_are_left_out() -> None:
    made = quantize_static(MODEL, None, DATA, nodes_to_exclude=["conv", "gemm"])
    assert "k" in {t.name for t in made.graph.initializer}
    products = [node for node in made.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert [node.input[1].endswith("_dequantized") for node in products] == [False, False, True]
    only = quantize_static(MODEL, None, DATA, op_types_to_quantize=["Conv"])
    assert ops(only).count("QuantizeLinear") == 2


def test_a_weight_that_others_read_stays() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="p"), helper.make_node("Add", ["y", "w"], ["z"], name="a")],
        {"x": (F, [4, 4])}, {"z": (F, [4, 4])}, {"w": random(4, 4)},
    )  # fmt: skip
    made = quantize_static(model, None, [{"x": random(4, 4)}])
    assert {"w", "w_quantized"} <= {t.name for t in made.graph.initializer}


def test_names_that_are_taken_are_not_used_twice() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "x_scale"], ["y"], name="p")],
        {"x": (F, [4, 4])}, {"y": (F, [4, 4])}, {"x_scale": random(4, 4)},
    )  # fmt: skip
    x = random(4, 4)
    made = quantize_static(model, None, [{"x": x}])
    want = InferenceSession(model).run(None, {"x": x})[0]
    assert np.abs(InferenceSession(made).run(None, {"x": x})[0] - want).max() < 0.1 * np.ptp(want)


def test_zeros_have_codes() -> None:
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="p")],
        {"x": (F, [2, 4])}, {"y": (F, [2, 4])}, {"w": np.zeros((4, 4), np.float32)},
    )  # fmt: skip
    made = quantize_static(model, None, [{"x": np.zeros((2, 4), np.float32)}], per_channel=True)
    assert not InferenceSession(made).run(None, {"x": np.zeros((2, 4), np.float32)})[0].any()


@pytest.mark.parametrize("method", [CalibrationMethod.Entropy, CalibrationMethod.Percentile])
def test_other_methods(method: CalibrationMethod) -> None:
    made = quantize_static(MODEL, None, DATA, calibrate_method=method)
    assert InferenceSession(made).run(None, DATA[0])[0].shape == (8, 10)


def test_an_opset_without_the_operators_is_an_error() -> None:
    with pytest.raises(ortmodule.InvalidArgumentError, match="opset 13"):
        quantize_static(network(opset=11), None, DATA, per_channel=True)
