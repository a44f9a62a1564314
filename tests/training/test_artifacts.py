"""export_training_artifacts: what the folder holds, how calls are given, what is refused; a set is always whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper
from torch import nn

import ortmodule.training.artifacts as artifacts_module
from ortmodule import (
    InferenceSession,
    InvalidArgumentError,
    ORTModule,
    SessionOptions,
    TrainingSession,
    UnsupportedError,
    export_training_artifacts,
)

from .models import Tied, batches, mlp, train

SGD = torch.optim.SGD


def export(module: nn.Module, folder: Path, example: object = None, loss: object = None, **more: object) -> None:
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    export_training_artifacts(
        module, loss or nn.CrossEntropyLoss(), optimizer, example or batches(1)[0], folder, **more
    )  # fmt: skip


def manifest(folder: Path) -> dict:
    return json.loads((folder / "artifacts.json").read_text())


def test_the_files_are_of_open_forms(tmp_path: Path) -> None:
    export(mlp(), tmp_path)
    said = manifest(tmp_path)
    files = {graph["file"] for graph in said["graphs"].values()} | {rule["file"] for rule in said["optimizer"]["rules"]}
    assert {p.name for p in tmp_path.iterdir()} == files | {"artifacts.json", said["checkpoint"]}
    for file in files:
        onnx.checker.check_model(str(tmp_path / file)) if "inference" in file else onnx.load(tmp_path / file)
    tensors = safetensors.torch.load_file(tmp_path / said["checkpoint"])
    assert set(tensors) == {
        *(names := ["0.weight", "0.bias", "2.weight", "2.bias"]),
        *(f"optimizer/{state}/{name}" for state in ("step", "momentum_buffer") for name in names),
    }
    assert torch.equal(tensors["0.weight"], mlp()[0].weight)
    assert said["graphs"]["training"]["inputs"] == ["input", "target"]
    assert said["graphs"]["inference"] | {"file": ""} == {
        "file": "", "inputs": ["input"], "tensors": ["0.weight", "0.bias", "2.weight", "2.bias"],
        "outputs": ["output"], "written": [], "portable": True,
    }  # fmt: skip
    group = {"learning_rate": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": 0}
    assert said["optimizer"]["groups"] == [group | {"weight_decay": 0.0, "maximize": 0, "fused": 0}]


def test_the_module_is_left_as_it_was(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    export(module, tmp_path)
    assert module.training and not module[1].training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    session = TrainingSession(tmp_path)
    train(session, batches(2))
    assert torch.equal(session.get_tensor("1.running_mean"), before["1.running_mean"]), "that part is frozen"
    assert manifest(tmp_path)["graphs"]["training"]["written"] == []


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> dict:
        y = x * self.x * scale
        return {"logits": y if mask is None else y * mask, "twice": 2 * y}


def loss_of_named(output: dict, target: dict) -> torch.Tensor:
    return ((output["logits"] - target["wanted"]) ** 2).mean()


def test_calls_by_name_and_structures(tmp_path: Path) -> None:
    x, mask, wanted = torch.randn(5, 3), torch.ones(5, 3), torch.zeros(5, 3)
    call = {"x": x, "mask": mask, "scale": 3.0, "target": {"wanted": wanted}}
    export(Named(), tmp_path, call, loss_of_named)
    session = TrainingSession(tmp_path)
    assert session.input_names == ["x", "mask", "target.wanted"]
    assert session.output_names == ["loss", "logits", "twice"]
    assert session.tensor_names == ["module.x"], "an input has its name"
    module = Named()
    loss = loss_of_named(module(x, mask, scale=3.0), {"wanted": wanted})
    loss.backward()
    assert session.train_step(x, mask, **{"target.wanted": wanted}).item() == pytest.approx(loss.item())
    assert torch.allclose(session.get_gradient("module.x"), module.x.grad)
    assert session.state_dict().keys() == {"x"}
    session.export_model_for_inference(tmp_path / "model.onnx", ["twice"])
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [v.name for v in graph.input] == ["x"] and [v.name for v in graph.output] == ["twice"]


class WithLoss(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(8, 4), form

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> object:
        scores = self.layer(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        return {"scalar": loss, "dict": {"logits": scores, "loss": loss}, "tuple": (loss, scores)}[self.form]


@pytest.mark.parametrize("form", ["scalar", "dict", "tuple"])
def test_a_module_may_return_its_loss(form: str, tmp_path: Path) -> None:
    module = WithLoss(form)
    (x, y), optimizer = batches(1)[0], SGD(module.parameters(), lr=0.1)
    export_training_artifacts(module, None, optimizer, (x, y), tmp_path)
    session = TrainingSession(tmp_path)
    loss = nn.functional.cross_entropy(module.layer(x), y).item()
    assert session.train_step(x, labels=y).item() == pytest.approx(loss)
    assert session.eval_step(x, y)[0].item() == pytest.approx(loss)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output * self.weight, target)


def test_a_losss_parameters_are_trained_too(tmp_path: Path) -> None:
    module, loss = mlp(), Weighted()
    optimizer = SGD([*module.parameters(), *loss.parameters()], lr=0.1)
    export_training_artifacts(module, loss, optimizer, batches(1)[0], tmp_path)
    session = TrainingSession(tmp_path)
    train(session, batches(3))
    assert "loss.weight" in session.parameter_names and "loss.weight" not in session.state_dict()
    assert not torch.equal(session.get_tensor("loss.weight"), torch.ones(4))


def test_an_ortmodule_and_a_function_that_makes_the_optimizer(tmp_path: Path) -> None:
    module = ORTModule(mlp())
    export_training_artifacts(
        module, nn.functional.cross_entropy, lambda p: SGD(p, lr=0.5), batches(1)[0], tmp_path
    )  # fmt: skip
    assert TrainingSession(tmp_path).learning_rate == 0.5


def test_unused_parameters_stay_and_are_kept(tmp_path: Path) -> None:
    module = mlp()
    module.unused = nn.Linear(3, 3)
    module.forward = lambda x: module[2](module[1](module[0](x)))  # type: ignore[method-assign]
    export(module, tmp_path)
    session = TrainingSession(tmp_path)
    train(session, batches(2))
    assert torch.equal(session.get_tensor("unused.weight"), module.unused.weight)
    assert session.get_gradient("unused.weight") is None
    assert session.state_dict().keys() == module.state_dict().keys()


def test_parameters_that_are_not_the_optimizers_stay(tmp_path: Path) -> None:
    module = mlp()
    export_training_artifacts(
        module, nn.CrossEntropyLoss(), SGD(module[2].parameters(), lr=1.0), batches(1)[0], tmp_path
    )  # fmt: skip
    session = TrainingSession(tmp_path)
    train(session, batches(2))
    assert session.parameter_names == ["2.weight", "2.bias"] and session.get_gradient("0.weight") is None
    assert torch.equal(session.get_tensor("0.weight"), module[0].weight)
    assert not torch.equal(session.get_tensor("2.weight"), module[2].weight)


class PythonsOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class CallsPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return PythonsOwn.apply(self.layer(x))


class Other(SGD):
    def step(self, closure=None):
        pass


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    module, example, loss = mlp(), batches(1)[0], nn.CrossEntropyLoss()
    optimizer = SGD(module.parameters(), lr=0.1)

    def refused(kind: type[Exception], text: str, *args: object, **more: object) -> None:
        with pytest.raises(kind, match=text):
            export_training_artifacts(*args, tmp_path / "refused", **more)  # type: ignore[arg-type]
        assert not (tmp_path / "refused" / "artifacts.json").exists()

    refused(InvalidArgumentError, "takes an nn.Module, got function", lambda x: x, loss, optimizer, example)
    refused(InvalidArgumentError, "loss should be a module or a function, got str", module, "mse", optimizer, example)
    refused(InvalidArgumentError, "floating scalar, got FLOAT of shape", module, lambda o, t: o, optimizer, example)
    refused(InvalidArgumentError, "should be one of torch.optim, got str", module, loss, "adam", example)
    refused(
        UnsupportedError, "type RMSprop has no graph", module, loss, torch.optim.RMSprop(module.parameters()), example
    )
    refused(UnsupportedError, "type Other has no graph", module, loss, Other(module.parameters(), lr=1), example)
    strange = SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    refused(InvalidArgumentError, r"1 tensors that are not the module's: \[\[3\]\]", module, loss, strange, example)
    refused(InvalidArgumentError, "sample_inputs are the module's inputs", module, loss, optimizer, (example[0],))
    refused(InvalidArgumentError, "dynamic_axes names the input 'y'", module, loss, optimizer, example,
            dynamic_axes={"y": [0]})  # fmt: skip
    refused(InvalidArgumentError, "has 2 axes, got 5", module, loss, optimizer, example, dynamic_axes={"input": [5]})
    calls = CallsPython()
    refused(UnsupportedError, "PythonsOwn|Python's", calls, loss, SGD(calls.parameters(), lr=1), example)
    frozen = mlp().requires_grad_(False)
    refused(InvalidArgumentError, "both used and trained", frozen, loss, SGD(frozen.parameters(), lr=1), example)


def test_axes_are_fixed_where_nobody_frees_them(tmp_path: Path) -> None:
    export(mlp(), tmp_path, dynamic_axes={})
    session = TrainingSession(tmp_path)
    session.train_step(*batches(1)[0])
    with pytest.raises(InvalidArgumentError, match="input"):
        session.train_step(*batches(1, 5)[0])


def test_an_export_replaces_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    export(mlp(), tmp_path)
    (tmp_path / "mine.safetensors").write_bytes(b"a user's")
    running = TrainingSession(tmp_path)
    export(Tied(), tmp_path, (tokens := torch.randint(11, (5, 7)), tokens))
    assert len(list(tmp_path.iterdir())) == 7 and (tmp_path / "mine.safetensors").exists()
    assert TrainingSession(tmp_path).parameter_names == ["embedding.weight", "norm.weight", "norm.bias"]
    running.eval_step(*batches(1)[0])
    running.export_model_for_inference(tmp_path / "model.onnx")


def test_an_export_that_stops_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(mlp(), tmp_path)
    written, write = [], artifacts_module._write
    for stop in range(6):
        written.clear()

        def breaks(path: Path, *args: object, stop: int = stop) -> None:
            if len(written) == stop:
                raise KeyboardInterrupt
            written.append(path)
            write(path, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(artifacts_module, "_write", breaks)
        with pytest.raises(KeyboardInterrupt):
            export(nn.Sequential(nn.Linear(8, 4)), tmp_path)
        assert TrainingSession(tmp_path).parameter_names[-1] == "2.bias"
    monkeypatch.undo()
    export(nn.Sequential(nn.Linear(8, 4)), tmp_path)
    assert TrainingSession(tmp_path).parameter_names == ["0.weight", "0.bias"]
    assert len(list(tmp_path.iterdir())) == 6, "what the others have left is gone"


def test_a_session_needs_no_module(tmp_path: Path) -> None:
    export(mlp(), tmp_path / "artifacts")
    x, y = batches(1)[0]
    torch.save((x, y), tmp_path / "batch")
    program = (
        "import sys, torch, ortmodule\n"
        "batch = torch.load(sys.argv[2])\n"
        "session = ortmodule.TrainingSession(sys.argv[1])\n"
        "print(session.train_step(*batch).item())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "artifacts"), str(tmp_path / "batch")]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(nn.functional.cross_entropy(mlp()(x), y).item())


class Solve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(3) * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(self.matrix, x.t()).t()


def test_an_operator_that_no_standard_has_is_said_and_trained(tmp_path: Path) -> None:
    module, x, y = Solve(), torch.randn(5, 3), torch.randn(5, 3)
    with pytest.warns(UserWarning, match="will need ortmodule to run"):
        export(module, tmp_path, (x, y), nn.MSELoss())
    assert not manifest(tmp_path)["graphs"]["inference"]["portable"]
    with pytest.raises(UnsupportedError, match="allow_aten_operators"):
        TrainingSession(tmp_path)
    session = TrainingSession(tmp_path, allow_aten_operators=True)
    losses = train(session, [(x, y)] * 3)
    assert losses[0] == pytest.approx(nn.functional.mse_loss(module(x), y).item()) and losses[2] < losses[0]
    session.export_model_for_inference(tmp_path / "model.onnx")
    options = SessionOptions()
    options.allow_aten_operators = True
    (found,) = InferenceSession(str(tmp_path / "model.onnx"), options).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), session.eval_step(x, y)[1], atol=1e-6)


def test_a_rule_may_be_any_graph(tmp_path: Path) -> None:
    """parameter - learning_rate sign(gradient), in standard operators, which write nothing themselves."""
    export(mlp(), tmp_path)
    said = manifest(tmp_path)
    rule = said["optimizer"]["rules"][0]
    rule["states"] = []
    (tmp_path / "artifacts.json").write_text(json.dumps(said))
    tensors, numbers = safetensors.torch.load_file(path := tmp_path / said["checkpoint"]), {"steps": 0}
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer/")}
    numbers["learning_rates"] = [0.25]
    safetensors.torch.save_file(kept, path, {"ortmodule.training": json.dumps(numbers)})
    F, D = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    nodes = [
        helper.make_node("Cast", ["learning_rate"], ["rate"], to=F),
        helper.make_node("Sign", ["gradient"], ["sign"]),
        helper.make_node("Mul", ["rate", "sign"], ["change"]),
        helper.make_node("Sub", ["parameter", "change"], ["new_parameter"]),
    ]
    inputs = [helper.make_tensor_value_info("learning_rate", D, [])]
    inputs += [helper.make_tensor_value_info(name, F, None) for name in ("parameter", "gradient")]
    output = helper.make_tensor_value_info("new_parameter", F, None)
    graph = helper.make_graph(nodes, "signs", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / rule["file"])
    session, before = TrainingSession(tmp_path), mlp()[0].weight
    session.train_step(*batches(1)[0])
    gradient = session.get_gradient("0.weight")
    session.optimizer_step()
    assert gradient is not None and torch.equal(session.get_tensor("0.weight"), before - 0.25 * gradient.sign())
