"""Weights of a session, which are changed into the layout of their kernels once: results are those of any weights."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ortmodule import InferenceSession, InvalidArgumentError, SessionOptions


def session(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], weights: dict[str, torch.Tensor]
) -> InferenceSession:
    """A session of nodes that make y of float inputs; sizes that are None or names vary."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    graph = helper.make_graph(
        nodes, "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.numpy(), n) for n, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return InferenceSession(model.SerializeToString())


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 8, 9, 9), (16, 8, 3, 3), {}),
    "padded": ((1, 8, 14, 14), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 3, 32, 32), (16, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "few channels": ((1, 3, 30, 33), (48, 3, 3, 5), {"pads": [1, 2, 1, 2]}),
    "few channels, more at one end": ((2, 4, 19, 29), (32, 4, 4, 3), {"pads": [0, 2, 3, 0], "strides": [3, 2]}),
    "one channel": ((2, 1, 20, 40), (16, 1, 5, 5), {"strides": [1, 2]}),
    "few channels, long filters": ((1, 2, 24, 24), (16, 2, 11, 11), {"pads": [5, 5, 5, 5]}),
    "more at one end": ((1, 8, 14, 14), (16, 8, 3, 3), {"pads": [0, 0, 1, 2]}),
    "groups": ((2, 16, 10, 10), (16, 4, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise": ((2, 16, 10, 10), (16, 1, 3, 3), {"group": 16}),
    "dilated": ((1, 8, 20, 20), (8, 8, 3, 3), {"dilations": [2, 2]}),
    "pointwise": ((2, 32, 7, 7), (64, 32, 1, 1), {}),
    "small planes": ((4, 64, 2, 2), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one axis": ((2, 8, 30), (16, 8, 3), {}),
    "three axes": ((1, 4, 8, 8, 8), (8, 4, 3, 3, 3), {}),
}


def eager_convolution(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, attributes: dict[str, Any]) -> torch.Tensor:
    rank = x.dim() - 2
    pads = attributes.get("pads", [0] * (2 * rank))
    both = [pads[k + rank * end] for k in reversed(range(rank)) for end in (0, 1)]
    padded = torch.nn.functional.pad(x, both)
    ones = [1] * rank
    return torch.ops.aten.convolution(
        padded, w, b, attributes.get("strides", ones), [0] * rank, attributes.get("dilations", ones), False, [0] * rank,
        attributes.get("group", 1),
    )  # fmt: skip


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution(kind: str) -> None:
    torch.manual_seed(0)
    shape, filters, attributes = CONVOLUTIONS[kind]
    w, b = torch.randn(filters), torch.randn(filters[0])
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    s = session([node], {"x": [None] * len(shape)}, {"w": w, "b": b})
    for scale in (1, 2, 1):  # other sizes than those for which the filters were laid out
        x = torch.randn(shape[0] * scale, shape[1], *(size + scale - 1 for size in shape[2:]))
        for given in (x, x.to(memory_format=torch.channels_last) if x.dim() == 4 else x):
            (y,) = s.run(None, {"x": given.numpy()})
            torch.testing.assert_close(
                torch.from_numpy(y), eager_convolution(x, w, b, attributes), rtol=1e-4, atol=1e-4
            )
            assert y.flags["C_CONTIGUOUS"]


def test_a_picture_of_few_channels_has_the_same_bits_in_every_batch_and_by_any_number_of_threads() -> None:
    torch.manual_seed(0)
    w, b = torch.randn(64, 3, 7, 7), torch.randn(64)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[3] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    s = session(nodes, {"x": [None] * 4}, {"w": w, "b": b})
    x = torch.randn(3, 3, 50, 45)
    x[1, 0, 7, 9], x[2, 2, 0, 0] = float("nan"), float("inf")
    expected = torch.relu(torch.conv2d(x, w, b, 2, 3))
    results = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            results.append(torch.from_numpy(s.run(None, {"x": x.numpy()})[0]))
        finally:
            torch.set_num_threads(before)
    torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    alone = torch.cat([torch.from_numpy(s.run(None, {"x": one[None].numpy()})[0]) for one in x])
    for other in (*results[1:], alone):
        torch.testing.assert_close(other, results[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("filters", [(32, 16, 3, 3), (16, 8, 1, 1), (16, 3, 3, 3)])
def test_a_rectified_convolution_keeps_what_is_no_number(filters: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(filters), torch.randn(2, filters[1], 12, 12)
    x[1, 0, 7, 9], x[0, 0, 3, 3] = float("nan"), float("inf")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    result = torch.from_numpy(session(nodes, {"x": [None] * 4}, {"w": w}).run(None, {"x": x.numpy()})[0])
    torch.testing.assert_close(result, torch.relu(torch.conv2d(x, w)), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_picture_that_is_smaller_than_the_filters_is_an_error() -> None:
    s = session([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": [None] * 4}, {"w": torch.randn(4, 3, 5, 5)})
    with pytest.raises(Exception, match="(?i)kernel size|Conv"):
        s.run(None, {"x": numpy.zeros((1, 3, 4, 4), numpy.float32)})
    assert s.run(None, {"x": numpy.zeros((1, 3, 6, 6), numpy.float32)})[0].shape == (1, 4, 2, 2)


@pytest.mark.parametrize("rows", [1, 2, 17, 130])
@pytest.mark.parametrize("kind", ["Gemm", "Gemm transposed", "MatMul", "MatMul of three axes"])
def test_a_product(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    w, b = torch.randn(96, 200), torch.randn(200)
    x = torch.randn(3, rows, 96) if kind.endswith("axes") else torch.randn(rows, 96)
    if kind.startswith("Gemm"):
        transposed = kind != "Gemm"
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(transposed))
        s = session([node], {"x": [None, 96]}, {"w": w.t().contiguous() if transposed else w, "b": b})
        expected = x @ w + b
    else:
        s = session([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [None] * x.dim()}, {"w": w})
        expected = x @ w
    for _ in range(3):
        torch.testing.assert_close(torch.from_numpy(s.run(None, {"x": x.numpy()})[0]), expected, rtol=1e-4, atol=1e-4)


def test_first_runs_of_many_threads() -> None:
    torch.manual_seed(0)
    w, f = torch.randn(300, 200), torch.randn(8, 4, 3, 3)
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["c"]),
        helper.make_node("Flatten", ["c"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    s = session(nodes, {"x": [None, 4, 7, 7]}, {"w": w[:200], "f": f})
    x = torch.randn(16, 4, 7, 7)
    expected = torch.conv2d(x, f).flatten(1) @ w[:200]
    results: list[Any] = [None] * 8

    def run(i: int) -> None:
        results[i] = s.run(None, {"x": x.numpy()})[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for y in results:
        torch.testing.assert_close(torch.from_numpy(y), expected, rtol=1e-4, atol=1e-4)


MEMORY = """
import sys
import numpy
from onnx import helper, numpy_helper
from ortmodule import InferenceSession, SessionOptions

def resident():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss")) // 1024

def model(weights):
    names = [f"x{i}" for i in range(len(weights) + 1)]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(len(weights))]
    x, y = (helper.make_tensor_value_info(name, 1, None) for name in (names[0], names[-1]))
    tensors = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors), ir_version=10).SerializeToString()

def random(rows, columns):
    return numpy.random.rand(rows, columns).astype(numpy.float32)

options = SessionOptions()
options.weights_folder = sys.argv[1]
x = random(64, 2048)
InferenceSession(model([random(2048, 8)])).run(None, {"x0": x})  # what all sessions share
file = model([random(2048, 2048) for _ in range(6)])
before = resident()
session = InferenceSession(file, options)
y = session.run(None, {"x0": x})[0]
one = session.run(None, {"x0": x[:1]})[0]
print(resident() - before, float(numpy.abs(y[:1] - one).max() / y.max()))
"""


def test_weights_of_a_model_in_bytes_are_held_once_beside_a_file(tmp_path: Path) -> None:
    """96 MiB of them, which stay in memory beside what is laid out otherwise."""
    taken = []
    for folder in ("", str(tmp_path)):
        done = subprocess.run([sys.executable, "-c", MEMORY, folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        megabytes, error = done.stdout.split()
        taken.append(int(megabytes))
        assert float(error) < 1e-4
    assert taken[1] < taken[0] - 60, taken
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_files_is_an_error(tmp_path: Path) -> None:
    options = SessionOptions()
    options.weights_folder = tmp_path / "none"
    w = numpy_helper.from_array(numpy.ones((1024, 512), numpy.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    with pytest.raises(InvalidArgumentError, match="weights folder.*none"):
        InferenceSession(helper.make_model(graph, ir_version=10), options)
