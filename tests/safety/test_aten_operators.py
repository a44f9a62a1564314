"""Operators of PyTorch that a model calls by name: refused, unless the options say that its maker is trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ortmodule import (
    InferenceSession,
    InvalidArgumentError,
    SessionOptions,
    TrainingSession,
    UnsupportedError,
    export_training_artifacts,
)
from ortmodule.training import TrainingAgent


def reads_a_file(path: Path) -> onnx.ModelProto:
    """y: the bytes of a file, as torch.from_file gives them."""
    node = helper.make_node(
        "ATen", [], ["y"], name="thief", domain="org.pytorch.aten", operator="aten::from_file",
        arguments=[f"s:{path}", "b:0", "i:4", "i:0"],
    )  # fmt: skip
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), helper.make_tensor_value_info("y", 2, None)
    graph = helper.make_graph([node], "g", [x], [y])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("org.pytorch.aten", 1)]
    return helper.make_model(graph, ir_version=11, opset_imports=imports)


def nested(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same inside a body of an If."""
    inner = helper.make_graph([*model.graph.node], "body", [], [*model.graph.output])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([branch], "g", [*model.graph.input], [*model.graph.output], [yes])
    return helper.make_model(graph, ir_version=11, opset_imports=model.opset_import)


def in_a_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same inside a function of the model."""
    function = helper.make_function("own", "F", [], ["y"], [*model.graph.node], [*model.opset_import])
    call = helper.make_node("F", [], ["y"], domain="own")
    graph = helper.make_graph([call], "g", [*model.graph.input], [*model.graph.output])
    imports = [*model.opset_import, helper.make_opsetid("own", 1)]
    return helper.make_model(graph, ir_version=11, opset_imports=imports, functions=[function])


@pytest.mark.parametrize("where", [lambda m: m, nested, in_a_function], ids=["graph", "body", "function"])
def test_a_model_reads_no_file_through_pytorch(tmp_path: Path, where) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")
    with pytest.raises(UnsupportedError, match="allow_aten_operators.*thief"):
        InferenceSession(where(reads_a_file(secret)))


def test_who_trusts_a_models_maker_may_say_so() -> None:
    options = SessionOptions()
    options.allow_aten_operators = True
    (got,) = InferenceSession(of_pytorch(), options).run(None, {"x": np.ones(2, np.float32)})
    assert got.tolist() == [-1, -1]


def of_pytorch() -> onnx.ModelProto:
    """y = -x by PyTorch's own operator."""
    node = helper.make_node("ATen", ["x"], ["y"], domain="org.pytorch.aten", operator="aten::neg", arguments=["t"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("org.pytorch.aten", 1)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=11, opset_imports=imports)


def test_an_agent_asks_as_a_session_does() -> None:
    with pytest.raises(UnsupportedError, match="allow_aten_operators"):
        TrainingAgent(of_pytorch(), ["x"])
    agent = TrainingAgent(of_pytorch(), ["x"], allow_aten_operators=True)
    assert agent.input_names == ["x"]
    with pytest.raises(
        InvalidArgumentError, match="no option 'allow_aten_operator'.*did you mean 'allow_aten_operators'"
    ):
        TrainingAgent(of_pytorch(), ["x"], allow_aten_operator=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("graph", ["training", "evaluation", "update"])
def test_so_does_each_graph_of_artifacts(tmp_path: Path, graph: str) -> None:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batch = (torch.randn(4, 3), torch.randn(4, 2))
    export_training_artifacts(module, nn.MSELoss(), optimizer, batch, tmp_path)
    file = next(tmp_path.glob(f"{graph}*.onnx"))
    model = onnx.load(file)
    imports = [item.domain for item in model.opset_import]
    if "org.pytorch.aten" not in imports:
        model.opset_import.append(helper.make_opsetid("org.pytorch.aten", 1))
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == model.graph.output[0].name:
                node.output[i] = "before"
    call = helper.make_node(
        "ATen", ["before"], [model.graph.output[0].name], name="thief", domain="org.pytorch.aten",
        operator="aten::abs", arguments=["t"],
    )  # fmt: skip
    model.graph.node.append(call)
    onnx.save(model, file)

    def use(**options: bool) -> None:
        session = TrainingSession(tmp_path, **options)  # type: ignore[arg-type]
        session.train_step(*batch)
        session.eval_step(*batch)
        session.optimizer_step()

    with pytest.raises(UnsupportedError, match="allow_aten_operators.*thief"):
        use()
    use(allow_aten_operators=True)
