"""The history of a session's graph: applied event by event, it gives the graph of each stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ortmodule import _C, DebugOptions, InvalidArgumentError, ORTModule, inspect
from tests.sessions.models import F, model_of


def replayed(history: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The nodes after each event, in order, as a page makes them."""
    versions = history["versions"]
    order: list[int] = []
    current: dict[int, int] = {}
    states = []
    for event in history["events"]:
        for version in event["removed"]:
            del current[versions[version]["node"]]
        order = [node for node in order if node in current]
        for before, after in event["replaced"]:
            assert current[versions[before]["node"]] == before
            assert versions[before]["node"] == versions[after]["node"] and versions[before] != versions[after]
            current[versions[after]["node"]] = after
        for version, behind in event["added"]:
            node = versions[version]["node"]
            assert node not in current
            current[node] = version
            if not event["order"]:
                order.insert(0 if behind < 0 else order.index(behind) + 1, node)
        order = event["order"] or order
        assert sorted(order) == sorted(current) and len(order) == event["nodes"]
        states.append([versions[current[node]] for node in order])
    return states


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def test_the_events_of_a_training_session_lead_to_the_graph_of_each_stage(tmp_path) -> None:
    debug = DebugOptions(
        save_onnx=True, onnx_prefix="m", save_path=str(tmp_path), inspect_path=str(tmp_path / "records")
    )
    model = ORTModule(layers(), debug)
    model(torch.randn(3, 8)).sum().backward()
    (record,) = inspect.read(tmp_path / "records")
    states = replayed(record["history"])
    stages = {e["stage"]: state for e, state in zip(record["history"]["events"], states) if not e["pass"]}
    files = {"imported": "torch_exported", "planned": "execution_model"}
    assert len(stages) == 8
    for stage, nodes in stages.items():
        saved = onnx.load(tmp_path / f"m_{files.get(stage, stage)}_training.onnx").graph.node
        assert [n["op"].split("::")[-1] for n in nodes] == [n.op_type for n in saved], stage
        assert [n["outputs"][0][0] for n in nodes] == [n.output[0] for n in saved], stage
    passes = {e["pass"] for e in record["history"]["events"]}
    assert "counter_dropout" in passes
    assert {n["phase"] for n in stages["gradient"]} == {"forward", "backward"}


def test_a_session_keeps_no_history_unless_it_is_asked_to() -> None:
    session = _C.Session(model().SerializeToString(), "inference", [], {})
    with pytest.raises(InvalidArgumentError, match="keep_history"):
        session.history()


def model() -> onnx.ModelProto:
    secret = np.array([[123.4375, 3.5], [234.5625, 4.5]], np.float32)
    return model_of(
        [
            helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(secret, "c")),
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("MatMul", ["same", "w"], ["h"], name="product"),
            helper.make_node("Add", ["h", "c"], ["a"]),
            helper.make_node("Mul", ["a", "half"], ["b"]),
            helper.make_node("Reshape", ["b", "shape"], ["y"]),
        ],
        {"x": (F, ["n", 2])},
        {"y": (F, None)},
        {"w": secret, "half": np.float32(0.5), "shape": np.array([-1, 1], np.int64)},
    )


def test_values_of_weights_are_no_part_of_it_and_sizes_are() -> None:
    session = _C.Session(model().SerializeToString(), "inference", [], {"keep_history": True})
    history = session.history()
    text = repr(history)
    assert "123.4375" not in text and "234.5625" not in text
    sources = {s["name"]: s for s in history["sources"]}
    assert sources["shape"]["text"] == "[-1, 1]" and sources["half"]["text"] == "0.5"
    assert sources["w"]["constant"] and sources["w"]["text"] == "" and sources["w"]["type"] == "float[2, 2]"
    assert not sources["x"]["constant"]
    replayed(history)


def test_passes_over_a_body_change_the_node_that_holds_it() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Relu", ["i"], ["r"])],
        "then", [], [helper.make_tensor_value_info("r", F, ["n"])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["m"])], "else", [], [helper.make_tensor_value_info("m", F, ["n"])]
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    graph = model_of([choice], {"x": (F, ["n"]), "c": (TensorProto.BOOL, [])}, {"y": (F, ["n"])})
    history = _C.Session(graph.SerializeToString(), "inference", [], {"keep_history": True}).history()
    changes = [e for e in history["events"] if e["pass"] and e["replaced"]]
    assert changes and all(history["versions"][after]["op"] == "If" for e in changes for _, after in e["replaced"])
    last = dict(replayed(history)[-1][0]["attributes"])
    assert "Identity" not in last["then_branch"] and "Relu" in last["then_branch"]
