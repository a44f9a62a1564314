"""Models with branches, and sessions that run their nodes side by side."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ortmodule import InferenceSession, SessionOptions

from .models import F, model_of

RNG = np.random.default_rng(0)
SIZE = 96


def session_of(model: onnx.ModelProto, mode: str = "parallel", **settings) -> InferenceSession:
    options = SessionOptions()
    options.execution_mode = mode
    for name, value in ({"inter_op_num_threads": 2, "intra_op_num_threads": 1} | settings).items():
        setattr(options, name, value)
    return InferenceSession(model, options)


def branches(count: int = 2, depth: int = 3, size: int = SIZE, op: str = "Tanh") -> onnx.ModelProto:
    """`count` chains of products, each read by the next one's last sum, and their sum."""
    nodes, weights, ends = [], {}, []
    for branch in range(count):
        at = "x"
        for step in range(depth):
            name = f"{branch}_{step}"
            weights[f"w{name}"] = (RNG.standard_normal((size, size)) / np.sqrt(size)).astype(np.float32)
            nodes.append(helper.make_node("MatMul", [at, f"w{name}"], [f"p{name}"]))
            nodes.append(helper.make_node(op, [f"p{name}"], [f"t{name}"]))
            at = f"t{name}"
        ends.append(at)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    return model_of(nodes, {"x": (F, ["n", size])}, {"y": (F, ["n", size])}, weights)


def given(rows: int = SIZE, size: int = SIZE) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((rows, size)).astype(np.float32)}


MODEL = branches()
FEEDS = given()
WANTED = session_of(MODEL, "sequential").run(None, FEEDS)[0]
