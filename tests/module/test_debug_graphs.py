"""The graphs that save_onnx writes: sound ONNX at every stage, and a portable forward that other runtimes run."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from ortmodule import _C, DebugOptions, Options, ORTModule
from ortmodule.capture import capture
from tests import zoo
from tests.support import mlp

STAGES = [
    "torch_exported", "resolved", "optimized_pre_grad", "gradient", "optimized", "recompute", "fusion",
    "execution_model",
]  # fmt: skip


def saved(module: torch.nn.Module, folder: Path) -> ORTModule:
    debug = DebugOptions(save_onnx=True, onnx_prefix="model", save_path=str(folder))
    return ORTModule(module, debug, options=Options(fallback="error"))


@pytest.mark.parametrize("name", ["mlp", "resnet18", "lstm", "gpt2", "bert"])
def test_every_saved_stage_passes_the_checker_and_loads_again(name: str, tmp_path: Path) -> None:
    sample = zoo.build(name, dropout=0.1)
    model = saved(sample.module, tmp_path)
    zoo.loss_of(model(**sample.inputs)).backward()
    files = [tmp_path / f"model_{stage}_training.onnx" for stage in STAGES]
    assert {*tmp_path.iterdir()} - {*files} <= {tmp_path / "model_portable_training.onnx"}
    for file in files:
        loaded = onnx.load(file)
        onnx.checker.check_model(loaded)
        session = _C.Session(file.read_bytes())
        assert session.input_names == [i.name for i in loaded.graph.input], file.name
        assert session.output_names == [o.name for o in loaded.graph.output], file.name


def test_the_gradient_stage_has_the_gradients_as_outputs(tmp_path: Path) -> None:
    model = saved(mlp(), tmp_path)
    model(torch.ones(2, 4)).sum().backward()
    (before,) = tmp_path.glob("*_optimized_pre_grad_training.onnx")
    (after,) = tmp_path.glob("*_gradient_training.onnx")
    plain, joint = onnx.load(before).graph, onnx.load(after).graph
    assert len(joint.output) == len(plain.output) + 4, "one per parameter"
    assert len(joint.input) == len(plain.input) + 1, "the gradient of the result"


def test_a_stage_computes_what_the_module_computes(tmp_path: Path) -> None:
    module = mlp()
    model = saved(module, tmp_path)
    x = torch.randn(3, 4)
    expected = module(x)
    model(x).sum().backward()
    (file,) = tmp_path.glob("*_resolved_training.onnx")
    session = _C.Session(file.read_bytes())
    tensors = dict(module.named_parameters())
    users = [n for n in session.input_names if n not in tensors]
    assert len(users) == 1
    (got,) = session.run([tensors.get(n, x).detach() for n in session.input_names])
    torch.testing.assert_close(got, expected.detach())


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet18", "mlp", "vit"])
def test_the_portable_forward_runs_in_stock_onnxruntime(name: str, tmp_path: Path) -> None:
    sample = zoo.build(name, dropout=0.1)
    eager = copy.deepcopy(sample.module).eval()
    model = saved(sample.module, tmp_path).eval()
    with torch.no_grad():
        model(**sample.inputs)
        expected = eager(**sample.inputs)
    file = tmp_path / "model_portable_inference.onnx"
    portable = onnx.load(file)
    onnx.checker.check_model(portable)
    assert {n.domain for n in portable.graph.node} <= {"", "ai.onnx", "com.microsoft"}
    runtime = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    state = {**dict(eager.named_parameters()), **dict(eager.named_buffers())}
    named = dict(capture(eager, (), sample.inputs).user_inputs)
    leaves = list(sample.inputs.values())
    users = {graph_name: leaves[i] for i, graph_name in named.items()}
    feed = {
        i.name: (users[i.name] if i.name in users else state[i.name]).detach().numpy() for i in runtime.get_inputs()
    }
    results = dict(zip([o.name for o in runtime.get_outputs()], runtime.run(None, feed), strict=True))
    wanted = [expected] if isinstance(expected, torch.Tensor) else [expected.loss, expected.logits]
    for tensor in wanted:
        close = [v for v in results.values() if v.shape == tuple(tensor.shape)]
        assert close, "no output of that shape"
        torch.testing.assert_close(torch.from_numpy(close[0]), tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_graphs_of_eval_mode_are_inference_graphs(recorded: bool, tmp_path: Path) -> None:
    model = saved(mlp(), tmp_path).eval()
    with torch.set_grad_enabled(recorded):
        model(torch.ones(2, 4))
    names = {file.name for file in tmp_path.iterdir()}
    assert {f"model_{stage}_inference.onnx" for stage in ("torch_exported", "optimized", "execution_model")} <= names
    assert not [name for name in names if "training" in name]


def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ORTModule(mlp())(torch.ones(2, 4))
    assert list(tmp_path.iterdir()) == []
