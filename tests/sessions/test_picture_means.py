"""Means over pictures whose channels lie side by side, as convolutions leave them: PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper

from ortmodule import InferenceSession

from .models import F, model_of


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(
    "sizes", [(1, 512, 7, 7), (3, 33, 5, 4), (2, 8, 1, 3), (2, 3, 40, 41), (1, 64, 64, 64)], ids=str
)
def test_means_are_pytorchs(sizes: tuple[int, ...], keep: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(sizes)
    x[0, 2, 0, 0] = float("inf")
    for axes in ([2, 3], [-1, -2], [1, 2]):
        node = helper.make_node("ReduceMean", ["x", "a"], ["y"], keepdims=keep)
        model = model_of([node], {"x": (F, [None] * 4)}, {"y": (F, None)}, {"a": np.array(axes)})
        session = InferenceSession(model)
        for given in (x.to(memory_format=torch.channels_last), x):
            (y,) = session.run(None, {"x": given})
            expected = given.mean(axes, keepdim=bool(keep))
            np.testing.assert_array_equal(y, expected.numpy())
