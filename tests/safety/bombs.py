"""Small models that want a machine: `python -m tests.safety.bombs` runs each in this process.

Prints a JSON line for each: what refused it, seconds, megabytes that were resident at most.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortmodule import InferenceSession, SessionOptions

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid("own", 1)]


def model(nodes: list[onnx.NodeProto], constants: dict[str, Any] | None = None, **parts: Any) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", FLOAT, [2])
    y = helper.make_tensor_value_info("y", FLOAT, None)
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, ir_version=11, opset_imports=OPSETS, **parts)


def constant_of_shape() -> bytes:
    return model([helper.make_node("ConstantOfShape", ["s"], ["y"])], {"s": [1 << 40]}).SerializeToString()


def expand() -> bytes:
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("Add", ["e", "e"], ["y"])]
    return model(nodes, {"s": [1 << 39, 2]}).SerializeToString()


def tile() -> bytes:
    return model([helper.make_node("Tile", ["x", "s"], ["y"])], {"s": [1 << 40]}).SerializeToString()


def range_() -> bytes:
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=FLOAT)]
    return model(nodes, {"a": np.int64(0), "b": np.int64(1 << 50), "c": np.int64(1)}).SerializeToString()


def pad() -> bytes:
    return model([helper.make_node("Pad", ["x", "p"], ["y"])], {"p": [1 << 39, 1 << 39]}).SerializeToString()


def resize() -> bytes:
    scales = np.asarray([1e12], np.float32)
    return model([helper.make_node("Resize", ["x", "", "k"], ["y"])], {"k": scales}).SerializeToString()


def resize_to_a_size() -> bytes:
    nodes = [helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear")]
    return model(nodes, {"s": [2**62]}).SerializeToString()


def pad_by_copies() -> bytes:
    nodes = [helper.make_node("Pad", ["x", "p"], ["y"], mode="edge")]
    return model(nodes, {"p": [1 << 38, 1 << 38]}).SerializeToString()


def mel_weights() -> bytes:
    bounds = {"b": np.int64(1 << 19), "n": np.int64(1 << 27), "r": np.int64(8192), "l": np.float32(0)}
    node = helper.make_node("MelWeightMatrix", ["b", "n", "r", "l", "h"], ["y"])
    return model([node], {**bounds, "h": np.float32(4096)}).SerializeToString()


def random_normal() -> bytes:
    return model([helper.make_node("RandomNormal", [], ["y"], shape=[1 << 20, 1 << 20])]).SerializeToString()


def _loop(body_nodes: list[onnx.NodeProto], carried: str, stacked: str) -> bytes:
    """A loop without an end over a carried value `v`; outputs: the carried and the stacked value."""
    info = helper.make_tensor_value_info
    inputs = [info("i", INT64, []), info("go", TensorProto.BOOL, []), info("v", FLOAT, None)]
    outputs = [info("go_on", TensorProto.BOOL, []), info(carried, FLOAT, None), info(stacked, FLOAT, None)]
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), *body_nodes]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    loop = helper.make_node("Loop", ["n", "yes", "x"], ["last", "all"], body=body)
    sum_ = helper.make_node("ReduceSum", ["all"], ["y"], keepdims=0)
    return model([loop, sum_], {"n": np.int64(2**62), "yes": np.bool_(True)}).SerializeToString()


def loop_that_stacks() -> bytes:
    return _loop([helper.make_node("Neg", ["v"], ["w"]), helper.make_node("Abs", ["v"], ["kept"])], "w", "kept")


def loop_that_doubles() -> bytes:
    doubled = helper.make_node("Concat", ["v", "v"], ["w"], axis=0)
    return _loop([doubled, helper.make_node("ReduceSum", ["v"], ["kept"], keepdims=0)], "w", "kept")


def tensor_of_terabytes() -> bytes:
    bomb = model([helper.make_node("Add", ["x", "w"], ["y"])])
    bomb.graph.initializer.add(name="w", data_type=FLOAT, dims=[1 << 40], raw_data=b"1234")
    return bomb.SerializeToString()


def product_that_overflows() -> bytes:
    bomb = model([helper.make_node("Add", ["x", "w"], ["y"])])
    bomb.graph.initializer.add(name="w", data_type=FLOAT, dims=[1 << 31, 1 << 31, 4], raw_data=b"")
    return bomb.SerializeToString()


def _field(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return _key(number) + length + bytes([size]) + data


def _key(number: int) -> bytes:
    key = number << 3 | 2
    return bytes([key]) if key < 0x80 else bytes([key & 0x7F | 0x80, key >> 7])


def million_nodes() -> bytes:
    """A million nodes of ten bytes."""
    node = _field(1, b"x") + _field(2, b"z") + _field(4, b"Abs")
    bomb = model([helper.make_node("Neg", ["x"], ["y"])])
    graph = bomb.graph.SerializeToString() + _field(1, node) * 1_000_000
    bomb.ClearField("graph")
    return bomb.SerializeToString() + _field(7, graph)


def nested_bodies() -> bytes:
    """Ten thousand bodies in bodies."""
    graph = b""
    for _ in range(10_000):
        attribute = _field(1, b"then_branch") + _field(6, graph)
        graph = _field(1, _field(4, b"If") + _field(5, attribute))
    bomb = model([helper.make_node("Neg", ["x"], ["y"])])
    bomb.ClearField("graph")
    return bomb.SerializeToString() + _field(7, graph)


def long_name() -> bytes:
    name = "n" * 100_000
    nodes = [helper.make_node("Neg", ["x"], [name]), helper.make_node("Abs", [name], ["y"])]
    return model(nodes).SerializeToString()


def functions_that_double() -> bytes:
    """Thirty functions, each of which calls the next twice."""
    functions = []
    for i in range(30):
        nodes = [helper.make_node(f"F{i + 1}", [a], [b], domain="own") for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], nodes, OPSETS))
    last = helper.make_function("own", "F30", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], OPSETS)
    nodes = [helper.make_node("F0", ["x"], ["y"], domain="own")]
    return model(nodes, functions=[*functions, last]).SerializeToString()


def functions_in_a_chain() -> bytes:
    """Ten thousand functions, each of which calls the next."""
    functions = []
    for i in range(10_000):
        nodes = [helper.make_node(f"F{i + 1}", ["a"], ["b"], domain="own")]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], nodes, OPSETS))
    nodes = [helper.make_node("F0", ["x"], ["y"], domain="own")]
    return model(nodes, functions=functions).SerializeToString()


# Refused as a session is made or run without options; below, with those that are said.
BOMBS: tuple[Callable[[], bytes], ...] = (
    constant_of_shape, expand, tile, range_, pad, resize, resize_to_a_size, pad_by_copies, mel_weights, random_normal,
    tensor_of_terabytes, product_that_overflows,
    million_nodes, nested_bodies, long_name, functions_that_double, functions_in_a_chain,
)  # fmt: skip
LIMITED: tuple[tuple[Callable[[], bytes], dict[str, Any]], ...] = (
    (loop_that_doubles, {"max_run_bytes": 64 << 20}),
    (loop_that_stacks, {"max_run_bytes": 16 << 20}),
    (loop_that_stacks, {"max_seconds": 0.3}),
)


def peak_megabytes() -> int:
    """The most that was resident since this was last asked."""
    status = Path("/proc/self/status").read_text().splitlines()
    Path("/proc/self/clear_refs").write_text("5")
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) >> 10


def run() -> Iterator[dict[str, Any]]:
    """Each bomb's refusal; `megabytes` are the most that was resident beyond what the process had before the first."""
    peak_megabytes()
    before = peak_megabytes()
    for make, limits in [*((make, {}) for make in BOMBS), *LIMITED]:
        data = make()
        options = SessionOptions()
        for name, value in limits.items():
            setattr(options, name, value)
        peak_megabytes()
        begin = time.perf_counter()
        error = ""
        try:
            InferenceSession(data, options).run(None, {"x": np.ones(2, np.float32)})
        except Exception as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
        seconds = time.perf_counter() - begin
        yield {
            "bomb": make.__name__,
            "limits": limits,
            "error": error,
            "seconds": seconds,
            "megabytes": peak_megabytes() - before,
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in run():
        print(json.dumps(line), flush=True)
