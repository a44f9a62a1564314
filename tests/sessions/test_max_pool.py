"""Maxima of windows of pictures whose channels lie side by side, as convolutions leave them: PyTorch's to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from ortmodule import InferenceSession

from .models import F, model_of

WINDOWS: dict[str, dict[str, Any]] = {
    "of ResNet": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "apart": {"kernel_shape": [2, 3], "strides": [1, 2], "dilations": [2, 1]},
    "wide": {"kernel_shape": [5, 4], "strides": [3, 1], "pads": [2, 2, 2, 2], "dilations": [1, 2]},
    "of one element": {"kernel_shape": [1, 1], "strides": [2, 1]},
}


@pytest.mark.parametrize("channels", [8, 33, 64])
@pytest.mark.parametrize("name", WINDOWS)
def test_maxima_are_pytorchs(name: str, channels: int) -> None:
    torch.manual_seed(0)
    attributes = WINDOWS[name]
    x = torch.randn(2, channels, 13, 16).to(memory_format=torch.channels_last)
    x[0, 3, 4:7, 5] = float("nan")
    x[1, 1] = float("-inf")
    x[1, 2, 3, 3] = float("inf")
    session = InferenceSession(
        model_of([helper.make_node("MaxPool", ["x"], ["y"], **attributes)], {"x": (F, [None] * 4)}, {"y": (F, None)})
    )
    (y,) = session.run(None, {"x": x})
    pads = attributes.get("pads", [0, 0])[:2]
    expected = torch.nn.functional.max_pool2d(
        x, attributes["kernel_shape"], attributes["strides"], pads, attributes.get("dilations", 1)
    )
    np.testing.assert_array_equal(y, expected.numpy())
    (again,) = session.run(None, {"x": x.contiguous()})
    np.testing.assert_array_equal(again, y)
