"""SessionOptions and RunOptions: each does what it says, and what is no option is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import ortmodule
from ortmodule import ExecutionOrder, GraphOptimizationLevel, InferenceSession, OrtValue, RunOptions, SessionOptions

from .models import F, add_one, model_of

RNG = np.random.default_rng(0)


def options_with(**settings) -> SessionOptions:
    options = SessionOptions()
    for name, value in settings.items():
        setattr(options, name, value)
    return options


def layers() -> onnx.ModelProto:
    """Three layers with a branch, whose elementwise work fuses, and a node that does nothing."""
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Identity", ["a"], ["b"]),
            helper.make_node("Tanh", ["b"], ["c"]),
            helper.make_node("Mul", ["c", "c"], ["d"]),
            helper.make_node("Add", ["d", "x"], ["e"]),
            helper.make_node("MatMul", ["e", "w"], ["f"]),
            helper.make_node("Relu", ["f"], ["y"]),
        ],
        {"x": (F, ["n", 32])},
        {"y": (F, ["n", 32])},
        {"w": RNG.standard_normal((32, 32)).astype(np.float32)},
    )


MODEL = layers()
X = RNG.standard_normal((64, 32)).astype(np.float32)
WANTED = InferenceSession(MODEL).run(None, {"x": X})[0]


def ops(session: InferenceSession) -> list[str]:
    graph = onnx.load_model_from_string(session._session.stage_model("planned")).graph
    return [node.op_type for node in graph.node]


@pytest.mark.parametrize(
    "settings",
    [
        {"execution_order": ExecutionOrder.PRIORITY_BASED},
        {"execution_order": ExecutionOrder.MEMORY_EFFICIENT},
        {"execution_order": "memory_efficient"},
        {"enable_mem_pattern": False},
        {"enable_mem_reuse": False},
        {"enable_mem_reuse": False, "enable_mem_pattern": False},
        {"graph_optimization_level": GraphOptimizationLevel.ORT_DISABLE_ALL},
        {"graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_BASIC},
        {"graph_optimization_level": 2},
        {"intra_op_num_threads": 1},
    ],
    ids=str,
)
def test_results_are_the_same(settings: dict) -> None:
    session = InferenceSession(MODEL, options_with(**settings))
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, {"x": X})[0], WANTED, rtol=1e-5, atol=1e-5)


def test_levels_run_fewer_passes() -> None:
    nothing, basic, everything = (
        ops(InferenceSession(MODEL, options_with(graph_optimization_level=level))) for level in (0, 1, 99)
    )
    assert "Identity" in nothing
    assert "Identity" not in basic and "Tanh" in basic
    assert "FusedKernel" in everything


def test_without_reuse_every_value_stays() -> None:
    plan = InferenceSession(MODEL, options_with(enable_mem_reuse=False))._session.plan_text()
    assert "release" not in plan and "!" not in plan
    assert "release" in InferenceSession(MODEL)._session.plan_text()


def test_without_patterns_no_memory_is_kept() -> None:
    large = np.ones((4096, 32), np.float32)
    kept, not_kept = InferenceSession(MODEL), InferenceSession(MODEL, options_with(enable_mem_pattern=False))
    for session in (kept, not_kept):
        for _ in range(3):
            session.run(None, {"x": large})
    assert kept._session.statistics()["arena_bytes"] > 0
    assert not_kept._session.statistics()["arena_bytes"] == 0


def test_threads_are_as_many_as_asked_for_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    counts = []
    session = InferenceSession(MODEL, options_with(intra_op_num_threads=1))
    session._session.observe(lambda *step: counts.append(torch.get_num_threads()))
    session.run(None, {"x": X})
    assert set(counts) == {1} and torch.get_num_threads() == before


def test_the_graph_that_runs_is_written(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    InferenceSession(MODEL, options_with(optimized_model_filepath=path))
    assert "Identity" not in [node.op_type for node in onnx.load(path).graph.node]
    np.testing.assert_allclose(InferenceSession(path).run(None, {"x": X})[0], WANTED, rtol=1e-5, atol=1e-5)


# -- free sizes --------------------------------------------------------------------------------------------------------


def test_a_free_size_gets_a_number() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("n", 64)
    session = InferenceSession(MODEL, options)
    assert session.get_inputs()[0].shape == [64, 32]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], WANTED, rtol=1e-5, atol=1e-5)
    with pytest.raises(ortmodule.InvalidArgumentError, match="'x'"):
        session.run(None, {"x": X[:5]})


def test_a_free_size_by_its_denotation() -> None:
    model = add_one()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    assert InferenceSession(model, options).get_inputs()[0].shape == [3]


def test_a_free_size_that_is_none_is_an_error() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 64)
    with pytest.raises(ortmodule.InvalidArgumentError, match="no free size 'batch'; it has 'n'"):
        InferenceSession(MODEL, options)
    with pytest.raises(ortmodule.InvalidArgumentError, match="from 0 on"):
        options.add_free_dimension_override_by_name("n", -1)


# -- initializers ------------------------------------------------------------------------------------------------------


def test_an_initializer_is_given_from_outside() -> None:
    weights = RNG.standard_normal((32, 32)).astype(np.float32)
    options = SessionOptions()
    options.add_initializer("w", OrtValue.ortvalue_from_numpy(weights))
    changed = onnx.ModelProto()
    changed.CopyFrom(MODEL)
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    want = InferenceSession(changed).run(None, {"x": X})[0]
    np.testing.assert_array_equal(InferenceSession(MODEL, options).run(None, {"x": X})[0], want)


def test_given_initializers_need_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    options = SessionOptions()
    weights = onnx.numpy_helper.to_array(MODEL.graph.initializer[0]).copy()
    options.add_external_initializers(["w"], [OrtValue.ortvalue_from_numpy(weights)])
    np.testing.assert_allclose(InferenceSession(path, options).run(None, {"x": X})[0], WANTED, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("v", np.zeros((32, 32), np.float32), "'v', which is no initializer"),
        ("w", np.zeros((32, 31), np.float32), r"float\[32, 32\].*float\[32, 31\]"),
        ("w", np.zeros((32, 32)), r"float\[32, 32\].*double\[32, 32\]"),
    ],
    ids=["unknown", "shape", "type"],
)
def test_an_initializer_that_does_not_fit(name: str, value, message: str) -> None:
    options = SessionOptions()
    options.add_initializer(name, OrtValue.ortvalue_from_numpy(value))
    with pytest.raises(ortmodule.InvalidArgumentError, match=message):
        InferenceSession(MODEL, options)


def test_only_values_are_initializers() -> None:
    with pytest.raises(ortmodule.InvalidArgumentError, match="OrtValue"):
        SessionOptions().add_initializer("w", np.zeros(2))  # type: ignore[arg-type]


# -- deterministic kernels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_deterministic_products_have_torchs_bits(mode: str) -> None:
    """Narrow products are a kernel of our own otherwise, whose sums are in another order on most processors."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("MatMul", ["x", "v"], ["z"])],
        {"x": (F, ["n", 512])}, {"y": (F, ["n", 512]), "z": (F, ["n", 512])},
        {name: RNG.standard_normal((512, 512)).astype(np.float32) for name in "wv"},
    )  # fmt: skip
    settings = {"execution_mode": mode, "inter_op_num_threads": 2, "intra_op_num_threads": 1}
    x = RNG.standard_normal((4, 512)).astype(np.float32)
    torch.use_deterministic_algorithms(True)
    try:
        wanted = InferenceSession(model, options_with(**settings)).run(None, {"x": x})
    finally:
        torch.use_deterministic_algorithms(False)
    session = InferenceSession(model, options_with(**settings, use_deterministic_compute=True))
    for got, want in zip(session.run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert not torch.are_deterministic_algorithms_enabled()


# -- logs --------------------------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    InferenceSession(MODEL).run(None, {"x": X}, RunOptions())
    assert logged(caplog) == []


def test_a_session_says_what_it_built(caplog: pytest.LogCaptureFixture) -> None:
    InferenceSession(MODEL, options_with(log_severity_level=1, logid="mine"))
    ((level, line),) = logged(caplog)
    assert level == "INFO" and line.startswith("[mine] ") and "nodes, compiled in" in line
    caplog.clear()
    InferenceSession(MODEL, options_with(log_severity_level=0))
    lines = [line for level, line in logged(caplog) if level == "DEBUG"]
    assert any(line.startswith("stage planned") for line in lines)
    assert any(line.startswith("pass ") for line in lines) and not any("LaunchKernel" in line for line in lines)
    caplog.clear()
    InferenceSession(MODEL, options_with(log_severity_level=0, log_verbosity_level=1))
    assert any("LaunchKernel MatMul" in line for _, line in logged(caplog))


def test_a_run_says_what_it_took_or_how_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    session, options = InferenceSession(MODEL, options_with(logid="mine")), RunOptions()
    options.log_severity_level, options.tag = 0, "first"
    session.run(None, {"x": X}, options)
    options.logid = "this"
    with pytest.raises(ortmodule.InvalidArgumentError):
        session.run(None, {"x": X[:, :3]}, options)
    (_, run), (_, failed) = logged(caplog)
    assert run.startswith("[mine] run 'first': ") and run.endswith(" ms")
    assert failed.startswith("[this] run 'first' failed after ")


def test_without_handlers_lines_go_to_the_error_stream(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "model.onnx")
    program = (
        "import ortmodule\noptions = ortmodule.SessionOptions()\noptions.log_severity_level = 1\n"
        f"ortmodule.InferenceSession({str(tmp_path / 'model.onnx')!r}, options)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "INFO ortmodule.sessions: " in done.stderr and done.stdout == ""


# -- what is no option -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [SessionOptions, RunOptions])
def test_an_unknown_option_is_an_error(made: type) -> None:
    name, near = ("enable_mem_patern", "enable_mem_pattern") if made is SessionOptions else ("terminat", "terminate")
    with pytest.raises(ortmodule.InvalidArgumentError, match=f"no option '{name}'.*did you mean '{near}'"):
        setattr(made(), name, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("execution_order", "fastest"), ("graph_optimization_level", 3), ("enable_mem_pattern", 1),
        ("intra_op_num_threads", -1), ("optimized_model_filepath", 3), ("log_severity_level", 5), ("logid", 1),
        ("log_severity_level", True), ("log_verbosity_level", -1), ("use_deterministic_compute", 1),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_so(name: str, value) -> None:
    options = SessionOptions()
    before = getattr(options, name)
    with pytest.raises(ortmodule.InvalidArgumentError, match=name):
        setattr(options, name, value)
    assert getattr(options, name) == before
