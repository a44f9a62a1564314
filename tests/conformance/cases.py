"""ONNX's own backend tests, from the installed onnx package: models with inputs and the outputs that they must give."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

# Outputs that no two implementations share: draws of a generator that ONNX does not define.
RANDOM = ("test_bernoulli",)


@functools.cache
def cases(kind: str) -> dict[str, Any]:
    """The tests of a kind ("node", "simple", "pytorch-converted", "pytorch-operator", "light") by name.

    The light models are networks whose weights are constants; onnx lists them as the kind "real".
    """
    with np.errstate(all="ignore"):
        found = load_model_tests(kind="real" if kind == "light" else kind)
    return {case.name: case for case in found if kind != "light" or _is_light(case)}


def _is_light(case: Any) -> bool:
    return bool(case.url) and case.url.startswith("onnx/backend/test/data/light/")


def _model_file(case: Any) -> str:
    if _is_light(case):
        return os.path.join(os.path.dirname(onnx.__file__), os.path.relpath(case.url, "onnx"))
    return os.path.join(case.model_dir, "model.onnx")


def model_of(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(_model_file(case))


def data_of(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs of each data set, as arrays, lists of arrays or None."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_array(v) for v in inputs], [_array(v) for v in outputs]
        return
    model = model_of(case)
    initialized = {i.name for i in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in initialized]
    if _is_light(case):
        stem = os.path.splitext(_model_file(case))[0]
        files = [f"{stem}_output_{i}.pb" for i in range(len(model.graph.output))]
        yield [_ramp(v) for v in inputs], [_read(f, v.type) for f, v in zip(files, model.graph.output)]
        return
    for folder in sorted(f.path for f in os.scandir(case.model_dir) if f.is_dir() and "test_data_set" in f.name):
        yield tuple(  # type: ignore[misc]
            [_read(os.path.join(folder, f"{side}_{i}.pb"), info.type) for i, info in enumerate(infos)]
            for side, infos in (("input", inputs), ("output", model.graph.output))
        )


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _ramp(info: onnx.ValueInfoProto) -> np.ndarray:
    """What onnx feeds its light models with: 0 to 1 in equal steps."""
    shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _read(path: str, kind: onnx.TypeProto) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    if kind.WhichOneof("value") == "sequence_type":
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.WhichOneof("value") == "optional_type":
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))


def assert_equal(got: Any, want: Any, rtol: float, atol: float) -> None:
    """As ONNX compares: same structure and types, numbers within the tolerances of the test.

    Raises:
        AssertionError: they differ.
    """
    if want is None or isinstance(want, list):
        assert (got is None) == (want is None), f"got {type(got).__name__}, expected {type(want).__name__}"
        assert want is None or len(got) == len(want), f"{len(got)} elements, expected {len(want)}"
        for g, w in zip(got or (), want or ()):
            assert_equal(g, w, rtol, atol)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if want.dtype == object or want.dtype.kind in "SU":
        np.testing.assert_array_equal(got, want)
        return
    assert got.dtype == want.dtype, f"type {got.dtype}, expected {want.dtype}"
    if want.dtype.itemsize == 1 or want.dtype.kind == "V":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if want.dtype.name == "bfloat16":
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
