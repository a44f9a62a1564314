"""Patterns of imported graphs that become one node: it gives what the parts give, here and in the stock package, at
sizes that change, in 16 bits too; and what looks nearly like one stays."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ortmodule import GraphOptimizationLevel, InferenceSession, SessionOptions

RNG = np.random.default_rng(0)
ROWS = {"x": "[b, s, 8]", "z": "[b, s, 8]"}
IDS = {"ids": "int64[b, s]", "kinds": "int64[b, s]", "places": "int64[1, s]"}
HEADS = {"x": "[b, 4, s, 8]", "f": "[b, s, 4]"}
CACHED = {"q": "[b, 4, s, 8]", "k": "[b, 2, s, 8]", "v": "[b, 2, s, 8]", "pk": "[b, 2, p, 8]", "pv": "[b, 2, p, 8]"}
WEIGHTS: dict[str, Any] = {
    "g": np.linspace(0.5, 2, 8), "h": np.linspace(-1, 1, 8), "g4": np.linspace(0.5, 2, 4), "one_row": np.ones((1, 8)),
    "words": RNG.normal(size=(20, 8)), "kind_rows": RNG.normal(size=(2, 8)), "place_rows": RNG.normal(size=(9, 8)),
    "quarter": np.array(0.25), "zero": np.array(0.0), "two": np.array(2.0),
    "i0": np.array([0]), "i1": np.array([1]), "i2": np.array([2]), "i3": np.array([3]), "i4": np.array([4]),
    "minus": np.array([-1]), "end": np.array([2**62]), "lowest": np.array(-1e4),
}  # fmt: skip
HALVES = "a = Slice(x, i0, i4, i3, i1) d = Slice(x, i4, end, i3, i1) n = Neg(d) r = Concat <axis = -1>(n, a) "
CACHES = "e = Concat <axis = -1>(f, f) co = Cos(e) si = Sin(e) c1 = Unsqueeze(co, i1) s1 = Unsqueeze(si, i1) "
TURN = "m = Mul(x, c1) t = Mul(r, s1) y = Add(m, t)"
REPEAT = (
    "b0 = Shape <start = 0, end = 1>(q) t0 = Shape <start = 2, end = 3>({0}) "
    "wide = Concat <axis = 0>(b0, i2, i2, t0, i8) all = Concat <axis = 0>(b0, i4, t0, i8) "
    "ku = Unsqueeze({0}, i2) ke = Expand(ku, wide) kr = Reshape(ke, all) "
    "vu = Unsqueeze({1}, i2) ve = Expand(vu, wide) vr = Reshape(ve, all) "
)
WEIGHTS["i8"] = np.array([8])
ATTEND = (
    "kt = Transpose <perm = [0, 1, 3, 2]>({0}) w = MatMul(q, kt) sc = Mul(w, quarter) pr = Softmax(sc) "
    "y = MatMul(pr, {1})"
)

# The operator, the inputs and the parts; near misses by what keeps them from being one.
PATTERNS: dict[str, tuple[str, dict[str, str], str]] = {
    "skip": ("SkipLayerNormalization", ROWS, "a = Add(x, z) y = LayerNormalization <axis = -1>(a, g, h)"),
    "skip without beta": ("SkipLayerNormalization", ROWS, "a = Add(x, z) y = LayerNormalization <axis = 2>(a, g)"),
    "skip with a bias": (
        "SkipLayerNormalization",
        ROWS,
        "c = Add(h, x) a = Add(z, c) y = LayerNormalization <axis = -1, epsilon = 0.1>(a, g, h)",
    ),
    "skip whose sum is read": (
        "SkipLayerNormalization",
        ROWS,
        "a = Add(x, z) n = LayerNormalization(a, g, h) r = Relu(a) y = Add(n, r)",
    ),
    "simplified skip": ("SkipSimplifiedLayerNormalization", ROWS, "a = Add(x, z) y = RMSNormalization(a, g)"),
    "simplified skip with a bias": (
        "SkipSimplifiedLayerNormalization",
        ROWS,
        "c = Add(x, h) a = Add(c, z) n = RMSNormalization(a, g) y = Add(n, a)",
    ),
    "embeddings": (
        "EmbedLayerNormalization",
        IDS,
        "w = Gather(words, ids) k = Gather(kind_rows, kinds) p = Gather(place_rows, places) a = Add(w, k) "
        "e = Add(a, p) y = LayerNormalization(e, g, h)",
    ),
    "embeddings without segments whose sum is read": (
        "EmbedLayerNormalization",
        {"ids": IDS["ids"], "places": IDS["places"]},
        "p = Gather(place_rows, places) w = Gather(words, ids) e = Add(p, w) n = LayerNormalization(e, g, h) "
        "y = Add(n, e)",
    ),
    "bias gelu": ("BiasGelu", {"x": ROWS["x"]}, "a = Add(x, h) y = Gelu(a)"),
    "rotary": ("RotaryEmbedding", HEADS, HALVES + CACHES + TURN),
    "rotary with a scale": (
        "RotaryEmbedding",
        HEADS,
        HALVES + "e = Concat <axis = -1>(f, f) cu = Cos(e) co = Mul(cu, two) si = Sin(e) c1 = Unsqueeze(co, i1) "
        "s1 = Unsqueeze(si, i1) " + TURN,
    ),
    "grouped heads": (
        "Attention",
        {name: CACHED[name] for name in "qkv"},
        REPEAT.format("k", "v") + ATTEND.format("kr", "vr"),
    ),
    "key cache": (
        "Attention",
        CACHED,
        "ck = Concat <axis = 2>(pk, k) cv = Concat <axis = -2>(pv, v) "
        + REPEAT.format("ck", "cv")
        + ATTEND.format("kr", "vr"),
    ),
    "mask of finite numbers": (
        "Attention",
        {"q": "[b, 4, s, 8]", "m": "bool[b, 1, s, s]"},
        "kt = Transpose <perm = [0, 1, 3, 2]>(q) w = MatMul(q, kt) add = Where(m, zero, lowest) sc = Add(w, add) "
        "pr = Softmax(sc) y = MatMul(pr, q)",
    ),
}
MISSES: dict[str, tuple[str, dict[str, str], str]] = {
    "normalized over two axes": ("Skip", ROWS, "a = Add(x, z) y = LayerNormalization <axis = 1>(a, one_row)"),
    "sum of a broadcast": ("Skip", {"x": ROWS["x"], "z": "[s, 8]"}, "a = Add(x, z) y = LayerNormalization(a, g, h)"),
    "statistics that are read": (
        "Skip",
        ROWS,
        "a = Add(x, z) n, mean = LayerNormalization(a, g, h) y = Add(n, mean)",
    ),
    "embeddings without a bias": (
        "EmbedLayer",
        IDS,
        "w = Gather(words, ids) p = Gather(place_rows, places) e = Add(w, p) y = LayerNormalization(e, g)",
    ),
    "an embedding that is read": (
        "EmbedLayer",
        IDS,
        "w = Gather(words, ids) p = Gather(place_rows, places) e = Add(w, p) n = LayerNormalization(e, g, h) "
        "y = Add(n, w)",
    ),
    "gelu of a sum that is read": ("BiasGelu", {"x": ROWS["x"]}, "a = Add(x, h) n = Gelu(a) y = Add(n, a)"),
    "gelu with tanh": ("BiasGelu", {"x": ROWS["x"]}, 'a = Add(x, h) y = Gelu <approximate = "tanh">(a)'),
    "gelu of a bias of other sizes": ("BiasGelu", {"x": ROWS["x"]}, "a = Add(x, one_row) y = Gelu(a)"),
    "a rotation that is read": (
        "RotaryEmbedding",
        HEADS,
        HALVES + CACHES + TURN.replace("y =", "q =") + " y = Add(q, r)",
    ),
    "angles that are not twice the same": (
        "RotaryEmbedding",
        HEADS,
        HALVES + "f2 = Mul(f, two) e = Concat <axis = -1>(f, f2) " + CACHES.split(") ", 1)[1] + TURN,
    ),
    "sine for cosine": ("RotaryEmbedding", HEADS, HALVES + CACHES.replace("Cos", "Sin") + TURN),
    "keys that are read": (
        "present_key",
        CACHED,
        "ck = Concat <axis = 2>(pk, k) cv = Concat <axis = 2>(pv, v) "
        + REPEAT.format("ck", "cv")
        + ATTEND.format("kr", "vr").replace("y =", "o =")
        + " ks = ReduceSum(ck) y = Add(o, ks)",
    ),
}


def model(inputs: dict[str, str], parts: str, half: bool = False, outputs: str = "y") -> bytes:
    """`parts` over inputs of floats, where they name no type."""
    real = "float16" if half else "float"
    declared = ", ".join(f"{'' if text[0].isalpha() else real}{text} {name}" for name, text in inputs.items())
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]>\ng ({declared}) => ('
        + ", ".join(f"{real} {name}" for name in outputs.split())
        + ") {\n "
        + parts.replace(") ", ")\n ")
        + "\n}"
    )
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    for name, value in WEIGHTS.items():
        integer = value.dtype.kind == "i"
        made.graph.initializer.append(
            numpy_helper.from_array(value if integer else value.astype(np.float16 if half else np.float32), name)
        )
    used = {name for node in made.graph.node for name in node.input}
    for initializer in [i for i in made.graph.initializer if i.name not in used]:
        made.graph.initializer.remove(initializer)
    return made.SerializeToString()


def feeds(inputs: dict[str, str], batch: int, seq: int, half: bool = False) -> dict[str, Any]:
    sizes = {"b": batch, "s": seq, "p": seq + 2}
    out = {}
    for name, text in inputs.items():
        shape = [sizes[size] if size in sizes else int(size) for size in text.partition("[")[2][:-1].split(", ")]
        if text.startswith("int64"):
            out[name] = RNG.integers(0, {"ids": 20, "kinds": 2, "places": 9}[name], shape)
        elif text.startswith("bool"):
            out[name] = RNG.random(shape) < 0.7
            if half:  # where all keys of a row are hidden, sums of 16 bits have lost the scores
                out[name] |= np.eye(shape[-1], dtype=bool)
        else:
            out[name] = RNG.normal(size=shape).astype(np.float16 if half else np.float32)
    return out


def sessions(file: bytes, path: Path) -> tuple[InferenceSession, InferenceSession, onnx.GraphProto]:
    plain, fused = SessionOptions(), SessionOptions()
    plain.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    fused.optimized_model_filepath = str(path / "fused.onnx")
    made = InferenceSession(file, plain), InferenceSession(file, fused)
    return *made, onnx.load(fused.optimized_model_filepath).graph


def has(graph: onnx.GraphProto, what: str) -> bool:
    if what == "present_key":
        return any(node.op_type == "Attention" and len(node.output) > 1 and node.output[1] for node in graph.node)
    return any(node.op_type.startswith(what) for node in graph.node)


@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
@pytest.mark.parametrize("name", PATTERNS)
def test_as_one_node(name: str, half: bool, tmp_path: Path) -> None:
    op, inputs, parts = PATTERNS[name]
    unfused, whole, graph = sessions(model(inputs, parts, half), tmp_path)
    assert has(graph, op)
    if name in ("grouped heads", "key cache"):
        assert not has(graph, "Expand") and not has(graph, "Softmax")
    if name == "key cache":
        assert not has(graph, "Concat") or half
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 2e-5, "atol": 5e-6}
    for batch, seq in ((1, 3), (2, 1), (3, 6)):
        given = feeds(inputs, batch, seq, half)
        np.testing.assert_allclose(whole.run(None, given)[0], unfused.run(None, given)[0], **tolerance)


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="the stock package is not installed")
@pytest.mark.parametrize("name", PATTERNS)
def test_as_the_stock_package_runs_the_parts(name: str, tmp_path: Path) -> None:
    import onnxruntime

    op, inputs, parts = PATTERNS[name]
    file = model(inputs, parts)
    whole = InferenceSession(file)
    try:
        stock = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds
        pytest.skip(f"the stock package does not load it: {error}")
    for batch, seq in ((2, 3), (1, 6)):
        given = feeds(inputs, batch, seq)
        np.testing.assert_allclose(whole.run(None, given)[0], stock.run(None, given)[0], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_stay(name: str, tmp_path: Path) -> None:
    op, inputs, parts = MISSES[name]
    unfused, whole, graph = sessions(model(inputs, parts), tmp_path)
    assert not has(graph, op)
    given = feeds(inputs, 2, 5)
    np.testing.assert_allclose(whole.run(None, given)[0], unfused.run(None, given)[0], rtol=2e-5, atol=1e-5)


def test_what_the_cache_holds_afterwards_is_an_output(tmp_path: Path) -> None:
    _, inputs, parts = PATTERNS["key cache"]
    unfused, whole, graph = sessions(model(inputs, parts, outputs="y ck cv"), tmp_path)
    assert has(graph, "Attention")
    for batch, seq in ((1, 4), (2, 1)):
        given = feeds(inputs, batch, seq)
        for one, other in zip(whole.run(None, given), unfused.run(None, given), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def test_counts_of_a_mask_come_with_the_embeddings(tmp_path: Path) -> None:
    """As com.microsoft's own fusion writes it: only nodes behind the normalization read the counts."""
    inputs = {**IDS, "mask": "int32[b, s]"}
    parts = (
        "w = Gather(words, ids) k = Gather(kind_rows, kinds) p = Gather(place_rows, places) a = Add(w, k) "
        "e = Add(a, p) n = LayerNormalization(e, g, h) c = ReduceSum <keepdims = 0>(mask, i1) y = Gather(n, c)"
    )
    unfused, whole, graph = sessions(model(inputs, parts), tmp_path)
    (node,) = [node for node in graph.node if node.op_type == "EmbedLayerNormalization"]
    assert node.output[1] and node.input[7] == "mask"
    given = feeds(IDS, 3, 2)
    given["mask"] = np.array([[0, 0], [1, 0], [1, 1]], np.int32)
    np.testing.assert_allclose(whole.run(None, given)[0], unfused.run(None, given)[0], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("ids", ["int64", "int32"])
def test_embeddings_of_both_integers_are_written_as_the_schema_has_them(ids: str, tmp_path: Path) -> None:
    """com.microsoft's EmbedLayerNormalization reads int32 alone; here int64 too, and beyond int32 it is no row."""
    onnxruntime = pytest.importorskip("onnxruntime")
    _, inputs, parts = PATTERNS["embeddings"]
    inputs = {name: text.replace("int64", ids) for name, text in inputs.items()}
    unfused, whole, graph = sessions(model(inputs, parts), tmp_path)
    casts = [node for node in graph.node if node.op_type == "Cast"]
    assert has(graph, "EmbedLayerNormalization") and len(casts) == (3 if ids == "int64" else 0)
    stock = onnxruntime.InferenceSession(str(tmp_path / "fused.onnx"), providers=["CPUExecutionProvider"])
    again = InferenceSession(tmp_path / "fused.onnx")
    for batch, seq in ((1, 3), (3, 6)):
        given = {name: value.astype(ids) for name, value in feeds(IDS, batch, seq).items()}
        expected = unfused.run(None, given)[0]
        for session in (whole, again, stock):
            np.testing.assert_allclose(session.run(None, given)[0], expected, rtol=2e-5, atol=1e-5)
    if ids == "int64":
        with pytest.raises(IndexError, match="is no row of a table of 20"):
            whole.run(None, {**given, "ids": given["ids"] + 2**32})


def test_ids_from_the_end_and_beyond() -> None:
    _, inputs, parts = PATTERNS["embeddings"]
    whole = InferenceSession(model(inputs, parts))
    given = feeds(inputs, 2, 3)
    from_end = {**given, "ids": given["ids"] - 20}
    np.testing.assert_array_equal(whole.run(None, from_end)[0], whole.run(None, given)[0])
    with pytest.raises(IndexError, match="20 is no row of a table of 20"):
        whole.run(None, {**given, "ids": np.full((2, 3), 20)})
