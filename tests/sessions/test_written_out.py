"""Operators that a model's file writes out in parts: as one node they give what the parts give."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from ortmodule import GraphOptimizationLevel, InferenceSession, SessionOptions

WEIGHTS = {
    "half": numpy.float32(0.5), "one": numpy.float32(1), "root": numpy.float32(2**0.5), "two": numpy.float32(2),
    "three": numpy.float32(3), "cubic": numpy.float32(0.044715), "scale": numpy.float32((2 / numpy.pi) ** 0.5),
    "e": numpy.float32(1e-5), "zero": numpy.float32(0), "quarter": numpy.float32(0.25),
    "last": numpy.array([-1]), "w": numpy.random.default_rng(0).normal(size=(8, 8)).astype(numpy.float32),
    "g": numpy.linspace(0.5, 2, 8, dtype=numpy.float32), "k": numpy.linspace(-1, 1, 8, dtype=numpy.float32),
    "mask": numpy.where(numpy.tri(6, dtype=bool), 0, -numpy.inf).astype(numpy.float32)[None, None],
    "hidden": numpy.full((1, 1, 6, 6), -numpy.inf, numpy.float32),
}  # fmt: skip
# By the operator that they become: of x [b, 4, 6, 8].
PARTS = {
    "Gelu": "d = Div(x, root) f = Erf(d) a = Add(f, one) m = Mul(x, a) y = Mul(m, half)",
    "Gelu with tanh": "p = Pow(x, three) c = Mul(p, cubic) v = Add(x, c) u = Mul(v, scale) t = Tanh(u) a = Add(t, one) "
    "m = Mul(x, half) y = Mul(m, a)",
    "LayerNormalization": "m = ReduceMean(x, last) d = Sub(x, m) p = Pow(d, two) v = ReduceMean(p, last) "
    "a = Add(v, e) s = Sqrt(a) n = Div(d, s) t = Mul(n, g) y = Add(t, k)",
    "RMSNormalization": "p = Mul(x, x) v = ReduceMean(p, last) a = Add(v, e) s = Sqrt(a) r = Reciprocal(s) "
    "n = Mul(x, r) y = Mul(g, n)",
    "Linear": "p = MatMul(x, w) y = Add(p, k)",
    "Attention": "t = Transpose <perm = [0, 1, 3, 2]>(x) q = Mul(x, half) o = Mul(t, quarter) s = MatMul(q, o) "
    "i = Add(s, mask) p = Softmax(i) b = IsNaN(p) c = Where(b, zero, p) y = MatMul(c, x)",
    "Attention of hidden rows": "t = Transpose <perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) i = Add(s, hidden) "
    "p = Softmax(i) b = IsNaN(p) c = Where(b, zero, p) y = MatMul(c, x)",
    "Attention without a mask": "t = Transpose <perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) p = Softmax(s) "
    "y = MatMul(p, x)",
}


def model(parts: str) -> bytes:
    lines = parts.replace(") ", ")\n ")
    text = (
        f'<ir_version: 10, opset_import: ["" : 20]>\ng (float[b, 4, 6, 8] x) => (float[b, 4, 6, 8] y) {{\n {lines}\n}}'
    )
    made = onnx.parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(numpy.asarray(w), n) for n, w in WEIGHTS.items())
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    return made.SerializeToString()


@pytest.mark.parametrize("name", PARTS)
def test_as_one_node(name: str, tmp_path: Path) -> None:
    file = model(PARTS[name])
    plain, fused = SessionOptions(), SessionOptions()
    fused.optimized_model_filepath = str(tmp_path / "fused.onnx")
    plain.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    parts, whole = InferenceSession(file, plain), InferenceSession(file, fused)
    nodes = [node.op_type for node in onnx.load(fused.optimized_model_filepath).graph.node]
    assert name.split()[0] in nodes and "Erf" not in nodes and "Softmax" not in nodes
    for batch in (1, 3):
        x = numpy.random.default_rng(batch).normal(size=(batch, 4, 6, 8)).astype(numpy.float32)
        (expected,), (y,) = parts.run(None, {"x": x}), whole.run(None, {"x": x})
        numpy.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)
        assert not numpy.isnan(y).any()
