"""Results in the caller's buffers: written there by the node that makes them, copied once where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ortmodule
from ortmodule import ExecutionMode, InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions

from .models import F, model_of

ROWS = 128  # of 96 floats: 48 KiB, more than the 32 KiB from which on results are placed
COLUMNS = 96
W = np.random.default_rng(0).standard_normal((COLUMNS, COLUMNS)).astype(np.float32)


def model(*nodes: onnx.NodeProto, outputs: list[str], columns: int = COLUMNS) -> onnx.ModelProto:
    shapes = {name: (F, ["n", columns]) for name in outputs}
    return model_of(list(nodes), {"x": (F, ["n", columns])}, shapes, {"w": W[:columns, :columns]})


def node(op: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def product() -> onnx.ModelProto:
    return model(node("MatMul", ["x", "w"], "y"), outputs=["y"])


def tensor(rows: int = ROWS, fill: float | None = None, columns: int = COLUMNS) -> torch.Tensor:
    return torch.randn(rows, columns) if fill is None else torch.full((rows, columns), float(fill))


def bound(session: InferenceSession, x: torch.Tensor, **outputs: torch.Tensor) -> IOBinding:
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", OrtValue.from_dlpack(x))
    for name, buffer in outputs.items():
        binding.bind_ortvalue_output(name, OrtValue.from_dlpack(buffer))
    return binding


def copies(session: InferenceSession, binding: IOBinding, runs: int = 3) -> list[list[str]]:
    """What each of some runs copied."""
    out = []
    for _ in range(runs):
        session.run_with_iobinding(binding)
        out.append(binding.copied_outputs())
    return out


KINDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "product": product,
    "elementwise": lambda: model(node("Tanh", ["x"], "a"), node("Mul", ["a", "x"], "y"), outputs=["y"]),
    "over its operand": lambda: model(
        node("MatMul", ["x", "w"], "h"), node("Softmax", ["h"], "s"), node("Relu", ["s"], "y"), outputs=["y"]
    ),
    "reshaped": lambda: model(
        node("MatMul", ["x", "w"], "h"),
        node("Shape", ["x"], "shape"),
        node("Reshape", ["h", "shape"], "y"),
        outputs=["y"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_second_run_on_nothing_is_copied(kind: str) -> None:
    session = InferenceSession(KINDS[kind]())
    x, y = tensor(), tensor(fill=7)
    binding = bound(session, x, y=y)
    assert copies(session, binding, 4)[1:] == [[], [], []]
    for _ in range(3):
        x.normal_()
        session.run_with_iobinding(binding)
        wanted = session.run(None, {"x": x})[0]
        assert np.array_equal(y.numpy(), wanted)
        assert binding.get_outputs()[0].data_ptr() == y.data_ptr()


def test_other_sizes_are_learned_anew() -> None:
    session = InferenceSession(product())
    for rows in (ROWS, 2 * ROWS, ROWS, 3 * ROWS):
        x, y = tensor(rows), tensor(rows, 0)
        assert copies(session, bound(session, x, y=y), 2)[1] == []
        assert torch.equal(y, torch.from_numpy(session.run(None, {"x": x})[0]))


def test_an_input_or_another_buffer_in_the_same_memory_means_a_copy() -> None:
    session = InferenceSession(model(node("MatMul", ["x", "w"], "y"), node("Neg", ["x"], "z"), outputs=["y", "z"]))
    x, apart = tensor(), tensor(fill=0)
    start = x.clone()
    binding = bound(session, x, y=x, z=apart)
    wanted = start
    for run in range(3):
        session.run_with_iobinding(binding)
        assert torch.equal(apart, -wanted)
        wanted = torch.from_numpy(session.run(["y"], {"x": wanted})[0])
        assert torch.equal(x, wanted)
        assert "y" in binding.copied_outputs()
        assert run == 0 or binding.copied_outputs() == ["y"]
    both = tensor(2 * ROWS, 0)
    binding = bound(session, tensor(), y=both[:ROWS], z=both[ROWS // 2 : ROWS + ROWS // 2])
    assert copies(session, binding) == [["y", "z"]] * 3
    neighbours = bound(session, tensor(), y=both[:ROWS], z=both[ROWS:])
    assert copies(session, neighbours)[-1] == []


def test_values_that_are_one_another_reach_buffers_that_meet() -> None:
    """y is x itself and z a view of it, whose buffers are x's memory and its other half."""
    nodes = (node("Identity", ["x"], "y"), node("Neg", ["x"], "z"))
    session = InferenceSession(model(*nodes, outputs=["y", "z"]))
    memory = tensor(ROWS + ROWS // 2)
    x, later = memory[:ROWS], memory[ROWS // 2 :]
    wanted = x.clone()
    session.run_with_iobinding(bound(session, x, y=later, z=x))
    assert torch.equal(memory[: ROWS // 2], -wanted[: ROWS // 2])
    assert torch.equal(later, wanted) or torch.equal(x, -wanted)  # the last of two that meet wins


def test_one_value_under_two_names() -> None:
    nodes = (
        node("MatMul", ["x", "w"], "y"),
        node("Shape", ["x"], "shape"),
        node("Reshape", ["y", "shape"], "z"),
        node("Relu", ["y"], "r"),
    )
    session = InferenceSession(model(*nodes, outputs=["y", "z", "r"]))
    x, y, z = tensor(), tensor(fill=0), tensor(fill=0)
    binding = bound(session, x, y=y, z=z)
    assert len(copies(session, binding)[-1]) == 1
    wanted = session.run(["y"], {"x": x})[0]
    assert np.array_equal(y.numpy(), wanted) and np.array_equal(z.numpy(), wanted)
    one = bound(session, x, y=y)
    one.bind_output("z")
    copies(session, one)
    free = one.get_outputs()[1].numpy()
    y.fill_(0)
    assert np.array_equal(free, wanted)


def test_a_buffer_of_other_strides_and_small_ones_are_copied() -> None:
    session = InferenceSession(product())
    x, y = tensor(), torch.zeros(COLUMNS, ROWS).t()
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", OrtValue.from_dlpack(x))
    binding.bind_ortvalue_output("y", OrtValue.from_dlpack(y))
    assert copies(session, binding) == [["y"]] * 3
    assert np.array_equal(y.numpy(), session.run(None, {"x": x})[0])
    assert copies(session, bound(session, tensor(4), y=tensor(4, 0))) == [["y"]] * 3


@pytest.mark.parametrize("rows", [ROWS // 2, 2 * ROWS, ROWS])
def test_a_buffer_that_does_not_fit_stays(rows: int) -> None:
    session = InferenceSession(product())
    copies(session, bound(session, tensor(), y=tensor(fill=0)))
    y = tensor(rows, 7) if rows != ROWS else torch.full((COLUMNS, ROWS), 7.0)
    with pytest.raises(ortmodule.InvalidArgumentError, match="the buffer of the output 'y'"):
        session.run_with_iobinding(bound(session, tensor(), y=y))
    assert (y == 7).all()


def test_an_earlier_result_as_the_buffer() -> None:
    session = InferenceSession(product())
    x = tensor()
    first = session.run_with_ort_values(None, {"x": OrtValue.from_dlpack(x)})[0]
    kept = first.numpy().copy()
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", OrtValue.from_dlpack(2 * x))
    binding.bind_ortvalue_output("y", first)
    assert copies(session, binding)[-1] == []
    assert np.allclose(first.numpy(), 2 * kept, rtol=1e-4, atol=1e-4)
    del binding, first
    for _ in range(3):
        assert np.array_equal(session.run(None, {"x": x})[0], kept)


def test_who_looks_at_a_run_and_nodes_side_by_side_mean_copies(tmp_path: Path) -> None:
    options = SessionOptions()
    options.execution_mode = ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads, options.intra_op_num_threads = 2, 1
    halves = model(
        *(node("MatMul", ["x", "w"], f"{side}{i}") for side in "ab" for i in range(2)),
        node("Add", ["a0", "b0"], "y"),
        outputs=["y", "a1", "b1"],
    )
    side_by_side = InferenceSession(halves, options)
    x, y = tensor(), tensor(fill=0)
    copies(side_by_side, bound(side_by_side, x, y=y))
    assert np.allclose(y.numpy(), InferenceSession(halves).run(["y"], {"x": x})[0], rtol=1e-4, atol=1e-4)
    session = InferenceSession(product())
    binding = bound(session, x, y=y)
    assert copies(session, binding)[-1] == []
    with ortmodule.debug.record(session, tmp_path / "run.record"):
        assert copies(session, binding, 2) == [["y"]] * 2
    assert copies(session, binding)[-1] == []


def test_a_buffer_in_the_memory_of_a_given_weight_is_an_error() -> None:
    options = SessionOptions()
    w = torch.from_numpy(W.copy())
    options.add_initializer("w", OrtValue.from_dlpack(w))
    session = InferenceSession(product(), options)
    with pytest.raises(ortmodule.InvalidArgumentError, match="memory of the initializer 'w'"):
        session.run_with_iobinding(bound(session, tensor(COLUMNS), y=w))
    assert np.array_equal(w.numpy(), W)


def test_a_run_that_is_ended_leaves_the_session_as_it_was() -> None:
    session = InferenceSession(product())
    x, y = tensor(), tensor(fill=0)
    binding, options = bound(session, x, y=y), RunOptions()
    copies(session, binding)
    options.terminate = True
    with pytest.raises(ortmodule.TerminatedError):
        session.run_with_iobinding(binding, options)
    assert copies(session, binding)[-1] == []
    assert np.array_equal(y.numpy(), session.run(None, {"x": x})[0])
