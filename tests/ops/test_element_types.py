"""Element types that torch has little of: unsigned integers, float8, types below a byte. NumPy and ml_dtypes judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from ortmodule import _C, InferenceSession

UNSIGNED = [np.uint16, np.uint32, np.uint64]
FLOAT8 = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
SMALL = ["INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"]
COMMON = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT8", "UINT16", "UINT32"]


def numpy_type(name: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))


def run(op: str, arrays: Sequence[np.ndarray], result: int = 0, opset: int = 26, **attributes: Any) -> np.ndarray:
    """One node, its inputs of the arrays' types, its output of the type `result` (0: that of the first array)."""
    types = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    inputs = [helper.make_tensor_value_info(f"x{i}", t, a.shape) for i, (t, a) in enumerate(zip(types, arrays))]
    node = helper.make_node(op, [v.name for v in inputs], ["y"], name="node", **attributes)
    output = helper.make_tensor_value_info("y", result or types[0], None)
    graph = helper.make_graph([node], "one_node", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    return InferenceSession(model).run(None, {v.name: a for v, a in zip(inputs, arrays)})[0]


def operands(kind: type) -> tuple[np.ndarray, np.ndarray]:
    top = np.iinfo(kind).max
    a = np.array([[0, 1, top], [top // 2 + 1, 7, top - 1]], kind)
    return a, np.array([3, 1, top], kind)


ARITHMETIC: list[tuple[str, dict[str, Any], Callable[..., np.ndarray]]] = [
    ("Add", {}, np.add),
    ("Sub", {}, np.subtract),
    ("Mul", {}, np.multiply),
    ("Div", {}, np.floor_divide),
    ("Mod", {}, np.mod),
    ("Max", {}, np.maximum),
    ("Min", {}, np.minimum),
    ("BitwiseAnd", {}, np.bitwise_and),
    ("BitwiseOr", {}, np.bitwise_or),
    ("BitwiseXor", {}, np.bitwise_xor),
    ("BitShift", {"direction": "RIGHT"}, lambda a, b: np.where(b < 8 * a.itemsize, a >> np.minimum(b, 15), 0)),
    ("BitShift", {"direction": "LEFT"}, lambda a, b: np.where(b < 8 * a.itemsize, a << np.minimum(b, 15), 0)),
]


@pytest.mark.parametrize("kind", UNSIGNED)
@pytest.mark.parametrize(("op", "attributes", "reference"), ARITHMETIC, ids=[f"{a[0]}-{a[1]}" for a in ARITHMETIC])
def test_arithmetic_wraps_like_numpy(op: str, attributes: dict, reference: Callable, kind: type) -> None:
    a, b = operands(kind)
    with np.errstate(all="ignore"):
        want = reference(a, b).astype(kind)
    np.testing.assert_array_equal(run(op, [a, b], **attributes), want, strict=True)


@pytest.mark.parametrize("kind", UNSIGNED)
@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
def test_comparisons_know_no_sign(op: str, kind: type) -> None:
    a, b = operands(kind)
    name = {"LessOrEqual": "less_equal", "GreaterOrEqual": "greater_equal"}.get(op, op.lower())
    np.testing.assert_array_equal(run(op, [a, b], TensorProto.BOOL), getattr(np, name)(a, b))


@pytest.mark.parametrize("kind", UNSIGNED)
def test_selection_and_movement(kind: type) -> None:
    a, b = operands(kind)
    mask, picks = np.array([True, False, True]), np.array([2, 0])
    same = np.testing.assert_array_equal
    same(run("Where", [mask, a, b], helper.np_dtype_to_tensor_dtype(np.dtype(kind))), np.where(mask, a, b), strict=True)
    same(run("Gather", [a, picks], axis=1), a[:, picks], strict=True)
    same(run("Clip", [a, kind(3), kind(np.iinfo(kind).max - 1)]), np.clip(a, 3, np.iinfo(kind).max - 1), strict=True)
    same(run("Concat", [a, a], axis=0), np.concatenate([a, a]), strict=True)
    same(run("Transpose", [a]), a.T, strict=True)
    same(run("ReduceMax", [a], keepdims=0), a.max(), strict=True)
    same(run("ReduceMin", [a], keepdims=0), a.min(), strict=True)
    same(run("ArgMax", [a], TensorProto.INT64, axis=1, keepdims=0), a.argmax(1))
    same(run("Abs", [a]), a, strict=True)
    same(run("Sign", [a]), np.sign(a), strict=True)
    values = run("TopK", [a, np.array([2])], axis=1)
    same(values, np.sort(a, 1)[:, :0:-1], strict=True)


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_moves_bit_by_bit(name: str) -> None:
    x = np.arange(16, dtype=np.uint8).reshape(4, 4).view(numpy_type(name))
    for got, want in (
        (run("Gather", [x, np.array([3, 1])]), x[[3, 1]]),
        (run("Concat", [x, x], axis=1), np.concatenate([x, x], 1)),
        (run("Reshape", [x, np.array([2, 8])]), x.reshape(2, 8)),
    ):
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def numbers(source: np.dtype, target: np.dtype) -> np.ndarray:
    """What both types' conversions define: small integers to and from integers, fractions among floats."""
    kinds = {np.dtype(k).name for k in ("float16", "float32", "float64")}
    floats = all(t.name in kinds or "float" in t.name for t in (source, target))
    x = np.arange(-9, 16) / 4 if floats else np.arange(-9, 16)
    if source.name.startswith("u") or target.name in ("uint16", "uint32"):
        x = np.abs(x)
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(source)


@pytest.mark.parametrize("target", COMMON + FLOAT8 + SMALL)
@pytest.mark.parametrize("source", COMMON + FLOAT8 + SMALL)
def test_cast_between_any_two_types(source: str, target: str) -> None:
    x = numbers(numpy_type(source), numpy_type(target))
    to = getattr(TensorProto, target)
    with np.errstate(all="ignore"):
        # ml_dtypes converts among its own types by way of float32.
        want = (
            x.astype(np.float32).astype(numpy_type(target))
            if source in FLOAT8 + SMALL
            else x.astype(numpy_type(target))
        )
    got = run("Cast", [x], to, to=to)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("target", FLOAT8)
@pytest.mark.parametrize("saturate", [0, 1])
def test_cast_to_float8_at_the_ends_of_its_range(target: str, saturate: int) -> None:
    kind = numpy_type(target)
    largest = float(ml_dtypes.finfo(kind).max)
    ends = largest * np.array([1, 1.03, 1.036, 1.0625, 1.07, 1.2, 100])
    x = np.concatenate([ends, -ends, [np.inf, -np.inf, np.nan, 0, -0.0]]).astype(np.float32)
    with np.errstate(all="ignore"):
        want = (np.clip(x, -largest, largest) if saturate else x).astype(kind)
    got = run("Cast", [x], getattr(TensorProto, target), to=getattr(TensorProto, target), saturate=saturate)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("up", [0, 126, 127, 128, 128, 128, 254, 255, 254]),
        ("down", [0, 126, 127, 127, 127, 127, 254, 255, 254]),
        ("nearest", [0, 126, 127, 127, 128, 128, 254, 255, 254]),
    ],
)
def test_cast_to_float8e8m0_rounds_to_a_power_of_two(mode: str, want: list[int]) -> None:
    x = np.array([0, 0.5, 1, 1.25, 1.5, 1.75, 2.0**127 * 1.75, np.nan, np.inf], np.float32)
    got = run("Cast", [x], TensorProto.FLOAT8E8M0, to=int(TensorProto.FLOAT8E8M0), round_mode=mode)
    assert got.view(np.uint8).tolist() == want


@pytest.mark.parametrize(("name", "low", "high"), [("INT4", -8, 7), ("UINT4", 0, 15), ("INT2", -2, 1), ("UINT2", 0, 3)])
def test_quantization_below_a_byte_saturates_and_comes_back(name: str, low: int, high: int) -> None:
    kind, element = numpy_type(name), getattr(TensorProto, name)
    x = np.linspace(-12, 20, 24, dtype=np.float32).reshape(4, 6)
    scale = np.array([[0.5, 1, 2], [1, 1, 1], [3, 0.25, 1], [2, 2, 2]], np.float32)
    zero = np.full(scale.shape, 1).astype(kind)
    codes = run("QuantizeLinear", [x, scale, zero], element, axis=1, block_size=2)
    wide = scale.repeat(2, 1)
    want = np.clip(np.rint(x / wide) + 1, low, high)
    assert codes.dtype == kind
    np.testing.assert_array_equal(codes.astype(np.float32), want)
    back = run("DequantizeLinear", [codes, scale, zero], TensorProto.FLOAT, axis=1, block_size=2)
    np.testing.assert_allclose(back, (want - 1) * wide, rtol=1e-6)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_packed_initializers_are_read_and_written(name: str, count: int) -> None:
    kind, element = numpy_type(name), getattr(TensorProto, name)
    bits = ml_dtypes.iinfo(kind).bits if "INT" in name else ml_dtypes.finfo(kind).bits
    codes = (np.arange(count) * 3 + 1).astype(np.uint8) & (2**bits - 1)
    # Signed integers hold their sign in all bits of the byte.
    x = (codes.astype(np.int16) - (codes >> (bits - 1) << bits if name in ("INT4", "INT2") else 0)).astype(np.int8)
    value = x.astype(kind) if "INT" in name else codes.view(kind)
    tensor = onnx.numpy_helper.from_array(value, "w")
    assert tensor.data_type == element
    node = helper.make_node("Reshape", ["w", "shape"], ["y"])
    graph = helper.make_graph(
        [node],
        "packed",
        [helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", element, [count])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=11)
    (got,) = InferenceSession(model).run(None, {"shape": np.array([count])})
    np.testing.assert_array_equal(got.astype(np.float32), value.astype(np.float32))
    session = _C.Session(model.SerializeToString(), "inference", [], {"keep_stages": True})
    written = onnx.load_from_string(session.stage_model("resolved")).graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(written).astype(np.float32), value.astype(np.float32))


def test_a_cast_is_found_at_every_opset() -> None:
    for opset in (13, 18, 19, 21, 23, 25):
        got = run("Cast", [np.array([1.5, -2.5], np.float32)], TensorProto.INT32, opset, to=int(TensorProto.INT32))
        assert got.tolist() == [1, -2]


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
def test_the_least_integer_divided_by_minus_one_wraps(kind: type) -> None:
    least = np.iinfo(kind).min
    a, b = np.array([least, 7, -7], kind), np.array([-1, -1, 2], kind)
    assert run("Div", [a, b]).tolist() == [least, -7, -3]
    assert run("Mod", [a, b]).tolist() == [0, 0, 1]


def test_an_integer_divided_by_zero_is_an_error() -> None:
    for kind in UNSIGNED:
        with pytest.raises(Exception, match="(?i)zero"):
            run("Div", [np.array([1], kind), np.array([0], kind)])


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_a_gradient_passes_through_float8_as_in_eager(name: str) -> None:
    kind = torch.float8_e4m3fn if name == "FLOAT8E4M3FN" else torch.float8_e5m2
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=getattr(TensorProto, name)),
        helper.make_node("Cast", ["small"], ["y"], to=int(TensorProto.FLOAT)),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "float8", [value], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    x = torch.linspace(-3, 3, 6).reshape(2, 3)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    (got,) = _C.Session(model.SerializeToString(), "training", ["x"]).run([ours])
    want = theirs.to(kind).to(torch.float32)
    seed = torch.linspace(0.1, 0.9, 6).reshape(2, 3)
    torch.testing.assert_close(got.detach(), want.detach())
    torch.testing.assert_close(torch.autograd.grad(got, ours, seed), torch.autograd.grad(want, theirs, seed))
