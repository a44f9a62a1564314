"""The two halves of a graph without autograd: gradients, many states, and the cache of what weights alone decide."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from ortmodule import InvalidArgumentError, ORTModuleError
from ortmodule.training import OrtValueCache, PartialGraphExecutionState, TrainingAgent

F, D = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


def model() -> onnx.ModelProto:
    """y = x tanh(w)^T, norm = sum(y^2), and rows, which nothing trainable reaches."""
    nodes = [
        helper.make_node("Tanh", ["w"], ["squashed"]),
        helper.make_node("Transpose", ["squashed"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["norm"], keepdims=0),
        helper.make_node("ReduceSum", ["x", "axis"], ["rows"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", F, ["batch", 3]),
        helper.make_tensor_value_info("w", F, [4, 3]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", F, ["batch", 4]),
        helper.make_tensor_value_info("norm", F, []),
        helper.make_tensor_value_info("rows", F, ["batch"]),
    ]
    axis = helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "halves", inputs, outputs, [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def tensors(batch: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return {"x": torch.randn(batch, 3, generator=generator), "w": torch.randn(4, 3, generator=generator)}


def gradient(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor | None, dnorm: torch.Tensor | None) -> torch.Tensor:
    w = w.clone().requires_grad_(True)
    y = x @ w.tanh().t()
    wanted = [(y, dy), ((y * y).sum(), dnorm)]
    used = [(output, d) for output, d in wanted if d is not None]
    return torch.autograd.grad([o for o, _ in used], [w], [d for _, d in used])[0]


def test_forward_and_backward(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    for source in (tmp_path / "model.onnx", model(), model().SerializeToString()):
        agent, state = TrainingAgent(source, ["w"]), PartialGraphExecutionState()
        assert agent.input_names == ["x", "w"] and agent.output_names == ["y", "norm", "rows"]
        given = tensors()
        y, norm, rows = agent.run_forward(given, state)
        assert state.is_pending and not y.requires_grad
        assert torch.allclose(y, given["x"] @ given["w"].tanh().t()) and torch.allclose(rows, given["x"].sum(1))
        dy, dnorm = torch.randn(5, 4), torch.tensor(0.5)
        for wanted in ({"y": dy, "norm": dnorm}, {"y": dy}, {"norm": dnorm}, [dy, None, None]):
            agent.run_forward({name: t.numpy() for name, t in given.items()}, state)
            found = agent.run_backward(wanted, state)
            assert not state.is_pending and list(found) == ["w"]
            named = wanted if isinstance(wanted, dict) else {"y": dy}
            assert torch.allclose(found["w"], gradient(*given.values(), named.get("y"), named.get("norm")), atol=1e-5)


def test_states_are_outstanding_in_any_number_and_order() -> None:
    agent = TrainingAgent(model(), ["w"])
    runs = [(tensors(batch), PartialGraphExecutionState()) for batch in (1, 2, 7, 3)]
    for given, state in runs:
        agent.run_forward(given, state)
    for given, state in reversed(runs):
        found = agent.run_backward({"norm": torch.ones(())}, state)["w"]
        assert torch.allclose(found, gradient(*given.values(), None, torch.ones(())), atol=1e-5)


def test_a_cache_keeps_what_the_weights_decide() -> None:
    agent, cache, state = (
        TrainingAgent(model(), ["w"], weights=["w"], fusion=False),
        OrtValueCache(),
        PartialGraphExecutionState(),
    )
    given = tensors()
    plain = agent.run_forward(given, state)
    assert len(cache) == 0
    expected = agent.run_backward({"norm": torch.ones(())}, state)["w"]
    for _ in range(3):
        outputs = agent.run_forward(given, state, cache)
        assert all(torch.equal(a, b) for a, b in zip(outputs, plain, strict=True))
        assert torch.equal(agent.run_backward({"norm": torch.ones(())}, state)["w"], expected)
    assert len(cache) > 0 and all(name not in ("x", "w", "y") for name in cache.names())
    other = {"x": given["x"], "w": given["w"] + 1}
    stale = agent.run_forward(other, state, cache)[0]
    assert torch.equal(stale, plain[0]), "whose cache it is empties it"
    cache.clear()
    fresh = agent.run_forward(other, state, cache)[0]
    assert torch.allclose(fresh, given["x"] @ other["w"].tanh().t(), atol=1e-6)


def test_threads_with_states_of_their_own() -> None:
    agent = TrainingAgent(model(), ["w"])

    def is_right(batch: int) -> bool:
        given, state = tensors(batch), PartialGraphExecutionState()
        expected = gradient(*given.values(), None, torch.ones(()))
        for _ in range(30):
            agent.run_forward(given, state)
            if not torch.allclose(agent.run_backward({"norm": torch.ones(())}, state)["w"], expected, atol=1e-5):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, range(1, 9)))


def test_what_does_not_fit_is_said() -> None:
    agent, other = TrainingAgent(model(), ["w"]), TrainingAgent(model(), ["w"])
    given, state, ones = tensors(), PartialGraphExecutionState(), torch.ones(())
    with pytest.raises(ORTModuleError, match="no forward whose backward"):
        agent.run_backward({"norm": ones}, state)
    with pytest.raises(InvalidArgumentError, match="trainable 'v' is no input"):
        TrainingAgent(model(), ["v"])
    with pytest.raises(InvalidArgumentError, match="weight 'v' is no input"):
        TrainingAgent(model(), ["w"], weights=["v"])
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        TrainingAgent("nowhere.onnx", ["w"])
    for feeds, text in (({"x": given["x"]}, "missing: .'w'"), ([given["x"]], "2 inputs"), (given["x"], "one tensor")):
        with pytest.raises(InvalidArgumentError, match=text):
            agent.run_forward(feeds, state)
    with pytest.raises(InvalidArgumentError, match="'x'"):
        agent.run_forward({**given, "x": np.zeros((5, 2), np.float32)}, state)
    agent.run_forward(given, state)
    with pytest.raises(InvalidArgumentError, match="state is of another graph's forward"):
        other.run_backward({"norm": ones}, state)
    for gradients, text in (
        ({"z": ones}, "unknown: .'z'"),
        ({"norm": torch.ones(2)}, r"'norm' is of Float and shape \[2\]"),
        ({"norm": torch.ones((), dtype=torch.double)}, "is of Double"),
        ({"rows": torch.ones(5)}, "'rows' has no gradient"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            agent.run_backward(gradients, state)
    assert agent.run_backward({"norm": ones}, state)["w"] is not None, "a wrong call leaves the state"


def test_writing_a_weight_between_the_halves_is_an_error() -> None:
    agent, state, given = TrainingAgent(model(), ["w", "x"]), PartialGraphExecutionState(), tensors()
    agent.run_forward(given, state)
    given["x"].add_(1)
    with pytest.raises(ORTModuleError, match="modified by an inplace operation"):
        agent.run_backward({"norm": torch.ones(())}, state)
