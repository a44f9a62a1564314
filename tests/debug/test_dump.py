"""Dumps of nodes: chosen by name and operator, figures or whole tensors, of models and of sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from ortmodule import DebugOptions, InferenceSession, InvalidArgumentError, ORTModule
from ortmodule.debug import dump
from tests.sessions.models import F, model_of
from tests.support import mlp


def a_session() -> InferenceSession:
    return InferenceSession(a_model())


def a_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="cut"),
        helper.make_node("ReduceSum", ["h"], ["z"], name="total", keepdims=0),
    ]
    weights = {"w": np.array([[1, -1], [2, -2]], np.float32)}
    return model_of(nodes, {"x": (F, ["n", 2])}, {"y": (F, ["n", 2]), "z": (F, [])}, weights)


X = {"x": np.array([[1, 2]], np.float32)}


def test_a_session_is_dumped(tmp_path: Path) -> None:
    session = a_session()
    with dump(session, tmp_path / "new") as dumped:
        session.run(None, X)
        session.run(None, X)
    session.run(None, X)
    (path,) = dumped.paths
    assert path.name.startswith("session_nodes_") and path.name.endswith("_inference.txt")
    text = path.read_text()
    assert "float32[1, 2] min -5 max 5 mean 0 std 5" in text
    assert "run 1 forward" in text and "run 2" not in text


def test_calls_for_some_outputs_are_seen_too(tmp_path: Path) -> None:
    session = a_session()
    with dump(session, tmp_path, runs=2) as dumped:
        session.run(["y"], X)
        session.run(["z"], X)
    text = dumped.paths[0].read_text()
    assert "out z float32[]" in text.split("run 2", 1)[1]


def test_globs_choose_nodes(tmp_path: Path) -> None:
    session = a_session()
    with dump(session, tmp_path, operators="Reduce*,Softmax") as dumped, pytest.warns(UserWarning, match="'Softmax'"):
        session.run(None, X)
        dumped.close()
    steps = [line for line in dumped.paths[0].read_text().splitlines() if line.startswith("run")]
    assert len(steps) == 1 and "ReduceSum" in steps[0]

    model = ORTModule(mlp())
    with dump(model, tmp_path, names=["*_grad*", "2/*"], prefix="net") as dumped:
        model(torch.ones(2, 4)).sum().backward()
    assert all(path.name.startswith("net_nodes_") for path in dumped.paths)
    steps = [line for line in dumped.paths[0].read_text().splitlines() if line.startswith("run")]
    assert steps and all("2/" in line or "_grad" in line for line in steps)


def test_whole_tensors_are_written(tmp_path: Path) -> None:
    session = a_session()
    with dump(session, tmp_path, tensors=True) as dumped:
        (y, _) = session.run(None, X)
    (path,) = dumped.paths
    files = sorted(path.with_suffix("").iterdir())
    values = {file.stem.split("_", 2)[2]: torch.load(file) for file in files}
    assert torch.equal(values["y"], torch.tensor(y))
    assert all(file.name in path.read_text() for file in files)


def test_options_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debug = DebugOptions(dump_nodes=1, save_path=str(tmp_path), dump_operators=["Tanh", "*Fused*"], dump_tensors=True)
    assert debug.dump_operators == ("Tanh", "*Fused*")
    model = ORTModule(mlp(), debug)
    model(torch.ones(2, 4)).sum().backward()
    (text,) = tmp_path.glob("Sequential_nodes_*_training.txt")
    steps = [line for line in text.read_text().splitlines() if line.startswith("run")]
    assert steps and all("Tanh" in line or "Fused" in line for line in steps)

    monkeypatch.setenv("ORTMODULE_DUMP_NODES", "1")
    monkeypatch.setenv("ORTMODULE_DUMP_NAMES", "total, y")
    monkeypatch.setenv("ORTMODULE_DUMP_TENSORS", "0")
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    session = a_session()
    session.run(None, X)
    (text,) = tmp_path.glob("session_nodes_*_inference.txt")
    steps = [line for line in text.read_text().splitlines() if line.startswith("run")]
    assert 1 <= len(steps) <= 2 and "'total'" in steps[-1]


def test_two_may_look_at_once(tmp_path: Path) -> None:
    session = a_session()
    with dump(session, tmp_path, prefix="one") as one, dump(session, tmp_path, prefix="two") as two:
        session.run(None, X)
    assert one.paths[0].read_text() == two.paths[0].read_text()


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    session = a_session()
    with pytest.raises(InvalidArgumentError, match="dump expects an ORTModule or InferenceSession, got Sequential"):
        dump(mlp(), tmp_path)
    with pytest.raises(InvalidArgumentError, match="runs should be"):
        dump(session, tmp_path, runs=0)
    with pytest.raises(InvalidArgumentError, match="folder should be a path"):
        dump(session, None)
    with pytest.raises(InvalidArgumentError, match="names should be globs"):
        dump(session, tmp_path, names=7)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="cannot write"):
        dump(session, tmp_path / "file")
    for wrong in ({"dump_tensors": "yes"}, {"dump_names": 3}, {"dump_operators": [""]}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            DebugOptions(**wrong)
