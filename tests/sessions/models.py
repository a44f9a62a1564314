"""Small models for the tests of sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule import RunOptions, TerminatedError

F = TensorProto.FLOAT


def seconds_to_end(run: Callable[[], object], options: RunOptions, after: float = 0.2) -> float:
    """How long `run`, which takes these options, goes on when it is asked to end `after` so many seconds."""
    ended: list[float] = []

    def work() -> None:
        with pytest.raises(TerminatedError, match="terminate"):
            run()
        ended.append(time.perf_counter())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(after)
    asked = time.perf_counter()
    options.terminate = True
    thread.join()
    return ended[0] - asked


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, tuple[int, Any]],
    initializers: dict[str, np.ndarray[Any, Any]] | None = None,
    **properties: Any,
) -> onnx.ModelProto:
    """A model whose inputs and outputs are (element type, shape) by name."""
    graph = helper.make_graph(
        list(nodes),
        "main",
        [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [helper.make_tensor_value_info(name, *what) for name, what in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, **properties)


def two_results() -> onnx.ModelProto:
    """total = sum of x w over rows; doubled = 2 x, which fails where `at` is no row of x."""
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["total"]),
            helper.make_node("Gather", ["x", "at"], ["row"]),
        ],
        {"x": (F, ["batch", 3]), "at": (TensorProto.INT64, [])},
        {"total": (F, ["batch", 2]), "row": (F, [3])},
        {"w": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )


def add_one() -> onnx.ModelProto:
    return model_of(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        {"x": (F, ["n"])},
        {"y": (F, ["n"])},
        {"one": np.ones((), np.float32)},
    )
