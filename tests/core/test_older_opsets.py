"""Models of older opsets give what the standard says for their version, whatever form the operator has today.

The expectation is onnx's reference evaluator where it knows the old form, and a line of NumPy where it does not.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ortmodule
from ortmodule import _C, errors

_RNG = np.random.default_rng(3)
X = _RNG.normal(size=(2, 3, 4)).astype(np.float32)
IMAGE = _RNG.normal(size=(2, 4, 5, 5)).astype(np.float32)
C = IMAGE[:, :, :, 0]  # rows of numbers per channel


def model_of(nodes, opset, inputs, outputs=("y",), *, typed=True, initializers=()):
    """A model whose inputs are `inputs` (arrays by name) and whose outputs have the type of X."""
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape if typed else None
        )
        for name, value in inputs.items()
    ]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph(nodes, "g", infos, results, list(initializers))
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def run(model, inputs):
    session = _C.Session(model.SerializeToString())
    return [value.numpy() for value in session.run([torch.from_numpy(value.copy()) for value in inputs.values()])]


def node(op, inputs=("x",), outputs=("y",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=f"the_{op}", **attributes)


def softmax(x, axes):
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


# (node, opset, inputs, expectation or None for the reference evaluator)
CASES = {
    "Squeeze": (node("Squeeze", axes=[0, 2]), 11, {"x": X[:1, :, :1]}, lambda x: x.reshape(3)),
    "Squeeze all": (node("Squeeze"), 9, {"x": X[:1, :, :1]}, lambda x: x.reshape(3)),
    "Unsqueeze": (node("Unsqueeze", axes=[0, 3]), 9, {"x": X}, lambda x: x[None, :, :, None]),
    "ReduceSum": (node("ReduceSum", axes=[1], keepdims=0), 11, {"x": X}, lambda x: x.sum(1)),
    "ReduceSum all": (node("ReduceSum"), 1, {"x": X}, lambda x: x.sum(keepdims=True)),
    "ReduceMean": (node("ReduceMean", axes=[-1]), 13, {"x": X}, lambda x: x.mean(-1, keepdims=True)),
    "ReduceMax": (node("ReduceMax", axes=[0, 2]), 12, {"x": X}, lambda x: x.max((0, 2), keepdims=True)),
    "ReduceL2": (node("ReduceL2", axes=[1], keepdims=0), 8, {"x": X}, lambda x: np.sqrt((x * x).sum(1))),
    "Split": (node("Split", axis=1, split=[1, 2], outputs=("y", "z")), 11, {"x": X}, lambda x: (x[:, :1], x[:, 1:])),
    "Split evenly": (node("Split", axis=2, outputs=("y", "z")), 7, {"x": X}, lambda x: (x[..., :2], x[..., 2:])),
    "Slice": (node("Slice", starts=[0, 1], ends=[9, -1], axes=[0, 2]), 9, {"x": X}, lambda x: x[:, :, 1:-1]),
    "Slice first axes": (node("Slice", starts=[1, -2], ends=[2, 9]), 1, {"x": X}, lambda x: x[1:2, -2:]),
    "Pad": (node("Pad", pads=[0, 1, 0, 0, 0, 2], value=1.5), 2, {"x": X}, None),
    "Pad edge": (node("Pad", pads=[0, 1, 0, 0, 0, 2], mode="edge"), 10, {"x": X}, None),
    "Pad paddings": (
        node("Pad", paddings=[0, 0, 1, 0, 0, 1]), 1, {"x": X}, lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1)]),
    ),
    "Clip": (node("Clip", min=-0.5, max=0.5), 6, {"x": X}, lambda x: x.clip(-0.5, 0.5)),
    "Clip below": (node("Clip", min=0.0), 10, {"x": X.astype(np.float64)}, lambda x: x.clip(0)),
    "Softmax": (node("Softmax"), 11, {"x": X}, lambda x: softmax(x, (1, 2))),
    "Softmax axis": (node("Softmax", axis=2), 9, {"x": X}, lambda x: softmax(x, 2)),
    "Softmax all": (node("Softmax", axis=0), 1, {"x": X}, lambda x: softmax(x, (0, 1, 2))),
    "LogSoftmax": (node("LogSoftmax", axis=-2), 12, {"x": X}, lambda x: np.log(softmax(x, (1, 2)))),
    "TopK": (
        node("TopK", k=2, axis=1, outputs=("y", "i")), 1, {"x": X},
        lambda x: (-np.sort(-x, 1)[:, :2], np.argsort(-x, 1, kind="stable")[:, :2]),
    ),
    "Reshape": (node("Reshape", shape=[0, -1]), 1, {"x": X}, lambda x: x.reshape(2, 12)),
    "Cast": (node("Cast", to="DOUBLE"), 1, {"x": X}, lambda x: x.astype(np.float64)),
    "Concat": (node("Concat", ("x", "x")), 1, {"x": X}, lambda x: np.concatenate([x, x], 1)),
    "Dropout": (node("Dropout", ratio=0.7), 7, {"x": X}, lambda x: x),
    "Dropout is_test": (node("Dropout", ratio=0.7, is_test=1), 6, {"x": X}, lambda x: x),
    "Dropout mask that nobody reads": (node("Dropout", outputs=("y", "m")), 9, {"x": X}, lambda x: x),
    "Dropout mask": (node("Dropout", outputs=("y", "m")), 10, {"x": X}, lambda x: (x, np.ones(x.shape, bool))),
    "Resize": (
        node("Resize", ("x", "s")), 10, {"x": IMAGE, "s": np.array([1, 1, 2, 3], np.float32)},
        lambda x, s: x.repeat(2, 2).repeat(3, 3),
    ),
    "Upsample": (
        node("Upsample", ("x", "s")), 9, {"x": IMAGE, "s": np.array([1, 1, 2, 3], np.float32)},
        lambda x, s: x.repeat(2, 2).repeat(3, 3),
    ),
    "Upsample attribute": (
        node("Upsample", scales=[1.0, 1.0, 1.0, 2.0]), 7, {"x": IMAGE}, lambda x: x.repeat(2, 3),
    ),
    "Upsample linear": (
        node("Upsample", mode="linear", scales=[1.0, 2.0]), 7, {"x": X[0]},
        lambda x: np.stack([x, np.concatenate([(x[:, :-1] + x[:, 1:]) / 2, x[:, -1:]], 1)], 2).reshape(3, 8),
    ),
    "DFT": (
        node("DFT", axis=1), 17, {"x": X[..., None]},
        lambda x: np.stack([(f := np.fft.fft(x[..., 0], axis=1)).real, f.imag], -1).astype(np.float32),
    ),
    "Hardmax": (
        node("Hardmax", axis=1), 11, {"x": X},
        lambda x: np.eye(12, dtype=np.float32)[x.reshape(2, 12).argmax(1)].reshape(x.shape),
    ),
    "RoiAlign": (
        node("RoiAlign", ("x", "r", "b"), output_height=2, output_width=2, sampling_ratio=2), 10,
        {"x": IMAGE, "r": np.array([[0, 0, 4, 4]], np.float32), "b": np.array([1])},
        lambda x, r, b: ReferenceEvaluator(
            model_of([node("RoiAlign", ("x", "r", "b"), output_height=2, output_width=2, sampling_ratio=2,
                           coordinate_transformation_mode="output_half_pixel")], 16, {"x": x, "r": r, "b": b})
        ).run(None, {"x": x, "r": r, "b": b})[0],
    ),
    "Add axis": (
        node("Add", ("x", "b"), broadcast=1, axis=1), 6, {"x": X, "b": X[0, :, 0]}, lambda x, b: x + b[:, None],
    ),
    "Sub suffix": (node("Sub", ("x", "b"), broadcast=1), 6, {"x": X, "b": X[0, 0]}, lambda x, b: x - b),
    "Pow": (node("Pow", ("x", "b")), 7, {"x": np.abs(X), "b": X[0, 0]}, lambda x, b: x**b),
    "Less": (node("Less", ("x", "b")), 7, {"x": X, "b": X[0, 0]}, lambda x, b: x < b),
    "Gemm": (
        node("Gemm", ("x", "x", "b"), transB=1, broadcast=1, alpha=0.5), 6, {"x": X[0], "b": X[0, :, 0]},
        lambda x, b: 0.5 * x @ x.T + b,
    ),
    "Sum": (node("Sum", ("x", "x", "x")), 6, {"x": X}, lambda x: 3 * x),
    "Scatter": (
        node("Scatter", ("x", "i", "u"), axis=1), 9,
        {"x": X[0, :1], "i": np.array([[1, 3]], np.int64), "u": np.array([[8.0, 9.0]], np.float32)},
        lambda x, i, u: np.array([[x[0, 0], 8, x[0, 2], 9]], np.float32),
    ),
    "Identity": (node("Identity"), 1, {"x": X}, lambda x: x),
    "BatchNormalization": (
        node("BatchNormalization", ("x", "s", "b", "m", "v"), spatial=1, is_test=1), 6,
        {"x": IMAGE, "s": C[0, :, 0], "b": C[0, :, 1], "m": C[1, :, 0], "v": C[1, :, 1] ** 2},
        lambda x, s, b, m, v: (
            (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5) * s[:, None, None] + b[:, None, None]
        ),
    ),
    "GroupNormalization": (
        node("GroupNormalization", ("x", "s", "b"), num_groups=2), 18,
        {"x": IMAGE, "s": np.array([1.5, -2], np.float32), "b": np.array([0.5, 1], np.float32)}, None,
    ),
    "GatherND": (
        node("GatherND", ("x", "i")), 11, {"x": X, "i": np.array([[1, 2]], np.int64)}, lambda x, i: x[[1], [2]],
    ),
    "OneHot": (
        node("OneHot", ("i", "d", "v")), 9,
        {"i": np.array([1, 0]), "d": np.array(3), "v": np.array([0, 5], np.float32)}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_older_form(name):
    old, opset, inputs, expected = CASES[name]
    model = model_of([old], opset, inputs, old.output[:1] if "nobody reads" in name else old.output)
    want = ReferenceEvaluator(model).run(None, inputs) if expected is None else expected(*inputs.values())
    want = list(want) if isinstance(want, tuple | list) else [want]
    for got, value in zip(run(model, inputs), want, strict=True):
        assert got.dtype == value.dtype
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Softmax", "Squeeze", "Clip", "Split", "GroupNormalization", "Slice"])
def test_no_ranks_are_needed(name):
    old, opset, inputs, _ = CASES[name]
    typed, untyped = (model_of([old], opset, inputs, old.output, typed=flag) for flag in (True, False))
    for got, want in zip(run(untyped, inputs), run(typed, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_chain_keeps_names_uses_and_order():
    nodes = [
        node("Softmax", ("x",), ("s",), axis=1),
        node("Squeeze", ("s",), ("q",), axes=[0]),
        node("Add", ("q", "q"), ("y",)),
        node("Clip", ("s",), ("z",), max=0.1),
    ]
    x = X[:1]
    model = model_of(nodes, 9, {"x": x}, ("s", "y", "z"))
    session = _C.Session(model.SerializeToString())
    assert session.output_names == ["s", "y", "z"]
    s, y, z = run(model, {"x": x})
    np.testing.assert_allclose(s, softmax(x, (1, 2)), rtol=1e-5)
    np.testing.assert_allclose(y, 2 * s[0], rtol=1e-5)
    np.testing.assert_allclose(z, s.clip(max=0.1), rtol=1e-5)


def test_gradients_flow_through_an_upgraded_form():
    session = _C.Session(model_of([node("Softmax")], 9, {"x": X}).SerializeToString(), "training", ["x"], {})
    x = torch.from_numpy(X.copy()).requires_grad_()
    (y,) = session.run([x])
    (y * torch.arange(24.0).reshape(2, 3, 4)).sum().backward()
    other = torch.from_numpy(X.copy()).requires_grad_()
    want = other.reshape(2, 12).softmax(1).reshape(2, 3, 4)
    (want * torch.arange(24.0).reshape(2, 3, 4)).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


@pytest.mark.parametrize(
    ("old", "opset", "words"),
    [
        (node("Gelu"), 12, ["Gelu", "the_Gelu", "12", "20 and later"]),
        (node("Tile", ("x", "x", "x")), 5, ["Tile", "the_Tile", "5", "6 and later"]),
        (node("BatchNormalization", ("x",) * 5, spatial=0), 7, ["spatial", "7", "1 to 13"]),
    ],
)
def test_a_form_that_is_not_covered_says_which_are(old, opset, words):
    with pytest.raises(errors.UnsupportedError) as caught:
        ortmodule.InferenceSession(model_of([old], opset, {"x": X}))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_file_never_says_an_old_form_under_todays_opset():
    body = helper.make_graph(
        [node("Add", ("s", "v"), ("t",))], "body",
        [onnx.ValueInfoProto(name=n) for n in ("s", "v")], [onnx.ValueInfoProto(name="t")],
    )  # fmt: skip
    scan = node("Scan", ("", "x", "z"), body=body, num_scan_inputs=1)
    session = _C.Session(
        model_of([scan], 8, {"x": X[:, 0], "z": X}).SerializeToString(), "inference", [], {"keep_stages": True}
    )
    with pytest.raises(errors.UnsupportedError, match="Scan.*opset 8"):
        session.stage_model("resolved")
    upsample = model_of([node("Upsample", scales=[1.0, 1.0, 1.0, 2.0])], 7, {"x": IMAGE})
    session = _C.Session(upsample.SerializeToString(), "inference", [], {"keep_stages": True})
    written = onnx.load_from_string(session.stage_model("resolved"))
    (image,) = ReferenceEvaluator(written).run(None, {"x": IMAGE})
    np.testing.assert_array_equal(image, IMAGE.repeat(2, 3))


def test_initializers_of_the_model_stay():
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    model = model_of([node("Mul", ("x", "w"), broadcast=1)], 6, {"x": X}, initializers=[weight])
    (y,) = run(model, {"x": X})
    np.testing.assert_allclose(y, X * np.array([1, 2, 3, 4], np.float32))
