"""RunOptions.training_mode: nodes that do not say whether they train follow it, all others say it themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ortmodule
from ortmodule import InferenceSession, RunOptions

from .models import F, add_one, model_of

X = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)


def training() -> RunOptions:
    options = RunOptions()
    options.training_mode = True
    return options


def dropout(*mode: bool) -> onnx.ModelProto:
    named = [name for name, _ in zip(("mode",), mode, strict=False)]
    return model_of(
        [helper.make_node("Dropout", ["x", "ratio", *named], ["y"])],
        {"x": (F, ["n", 32])},
        {"y": (F, ["n", 32])},
        {"ratio": np.array(0.5, np.float32), **{name: np.array(mode[0]) for name in named}},
    )


def batch_norm(**attributes: int) -> onnx.ModelProto:
    weights = {"scale": np.ones(32), "bias": np.zeros(32), "mean": np.full(32, 3.0), "var": np.full(32, 4.0)}
    return model_of(
        [helper.make_node("BatchNormalization", ["x", *weights], ["y"], **attributes)],
        {"x": (F, ["n", 32])},
        {"y": (F, ["n", 32])},
        {name: value.astype(np.float32) for name, value in weights.items()},
    )


def test_dropout_without_a_mode_drops_by_torchs_generator() -> None:
    session = InferenceSession(dropout())
    assert np.array_equal(session.run(None, {"x": X})[0], X)
    torch.manual_seed(3)
    y = session.run(None, {"x": X}, training())[0]
    kept = y != 0
    assert 0.4 < kept.mean() < 0.6 and np.allclose(y[kept], 2 * X[kept])
    torch.manual_seed(3)
    assert np.array_equal(session.run(["y"], {"x": X}, training())[0], y)
    assert not np.array_equal(session.run(["y"], {"x": X}, training())[0], y)
    assert np.array_equal(session.run(None, {"x": X})[0], X)


def test_batch_norm_without_a_mode_takes_the_batchs_statistics_and_keeps_the_models() -> None:
    session = InferenceSession(batch_norm())
    stored = (X - 3) / np.sqrt(np.float32(4 + 1e-5))
    own = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    for _ in range(2):
        assert np.allclose(session.run(None, {"x": X})[0], stored, atol=1e-5)
        assert np.allclose(session.run(None, {"x": X}, training())[0], own, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [dropout(False), batch_norm(training_mode=0), add_one()],
    ids=["dropout says no", "batch norm says no", "no such node"],
)
def test_who_says_it_itself_goes_on_doing_it(model: onnx.ModelProto) -> None:
    session = InferenceSession(model)
    x = X if "32" in str(model.graph.input[0].type) else X[0]
    assert np.array_equal(session.run(None, {"x": x}, training())[0], session.run(None, {"x": x})[0])
    assert not session._variants


def test_in_bodies_and_functions_and_by_bindings() -> None:
    then, other = (
        helper.make_graph(
            [helper.make_node(op, [*inputs], [out])], name, [], [helper.make_tensor_value_info(out, F, None)]
        )
        for op, inputs, out, name in (("Dropout", ["x", "ratio"], "a", "then"), ("Identity", ["x"], "b", "else"))
    )
    model = model_of(
        [helper.make_node("If", ["which"], ["y"], then_branch=then, else_branch=other)],
        {"x": (F, ["n", 32]), "which": (onnx.TensorProto.BOOL, [])},
        {"y": (F, None)},
        {"ratio": np.array(0.5, np.float32)},
    )
    session = InferenceSession(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("which", np.array(True))
    binding.bind_output("y")
    session.run_with_iobinding(binding, training())
    assert (binding.copy_outputs_to_cpu()[0] == 0).any()
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], X)


def test_from_a_file_and_errors(tmp_path: Path) -> None:
    onnx.save(dropout(), tmp_path / "model.onnx")
    session = InferenceSession(tmp_path / "model.onnx")
    assert (session.run(None, {"x": X}, training())[0] == 0).any()
    with pytest.raises(ortmodule.InvalidArgumentError, match="training_mode should be True or False"):
        RunOptions().training_mode = 1
    one_row = InferenceSession(batch_norm())
    assert one_row.run(None, {"x": X[:1]})[0].shape == (1, 32)


def test_opsets_before_12_follow_where_they_cannot_say() -> None:
    model = model_of(
        [helper.make_node("Dropout", ["x"], ["y"], ratio=0.5)], {"x": (F, ["n", 32])}, {"y": (F, ["n", 32])}
    )
    model.opset_import[0].version = 10
    model.ir_version = 5
    session = InferenceSession(model)
    assert np.array_equal(session.run(None, {"x": X})[0], X)
    assert (session.run(None, {"x": X}, training())[0] == 0).any()
