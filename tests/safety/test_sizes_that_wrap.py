"""Sizes whose sums or products leave 64 bits and come round to what fits: no view reaches beyond its memory."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from ortmodule import InferenceSession, ORTModuleError, UnsupportedError

HALF = 2**63 - 1


def session(text: str) -> InferenceSession:
    return InferenceSession(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}'))


@pytest.mark.parametrize("sizes", [[1, HALF, HALF, 5], [HALF, HALF, 6, 0], [2, HALF, HALF, 4], [-1, 5, 0, 0]], ids=str)
def test_parts_whose_sum_comes_round(sizes: list[int]) -> None:
    """The sizes add up to 4 in 64 bits; the second part alone would be all of memory."""
    split = session("(float[n] x, int64[4] s) => (float y) { a, b, c, d = Split(x, s)  k = Constant<value_int = 1000>()"
                    "  y = Gather(b, k) }")  # fmt: skip
    with pytest.raises(ORTModuleError, match=r"\[Split\]"):
        split.run(None, {"x": np.arange(4, dtype=np.float32), "s": np.array(sizes)})


def test_a_product_that_comes_round() -> None:
    """13 times a number of 62 bits is 30 in 64 bits."""
    reshape = session("(float[n] x, int64[2] s) => (float[a, b] y) { r = Reshape(x, s)  y = Neg(r) }")
    other = 30 * pow(13, -1, 2**64) % 2**64
    assert other < 2**62 and 13 * other % 2**64 == 30
    with pytest.raises(ORTModuleError, match=r"\[Reshape\]"):
        reshape.run(None, {"x": np.arange(30, dtype=np.float32), "s": np.array([13, other])})


def test_more_axes_than_an_array_can_have() -> None:
    expand = session("(float[1] x, int64[n] s) => (float y) { y = Expand(x, s) }")
    with pytest.raises(UnsupportedError, match="70 axes, more than an array can have"):
        expand.run(None, {"x": np.ones(1, np.float32), "s": np.ones(70, np.int64)})
