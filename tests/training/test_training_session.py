"""TrainingSession beside PyTorch's own loop: losses, parameters, optimizers, accumulation, rates, checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ortmodule import (
    InvalidArgumentError,
    ORTModuleError,
    TrainingSession,
    UnsupportedError,
    export_training_artifacts,
    optim,
)

from .models import Tied, batches, difference, mlp, pairs, same_files, session_for, train, train_eagerly

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "sgd with everything": lambda p: SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "sgd with dampening": lambda p: SGD(p, lr=0.05, momentum=0.9, dampening=0.1, maximize=True),
    "adam": lambda p: ADAM(p, lr=0.01),
    "adam with everything": lambda p: ADAM(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: ADAMW(p, lr=0.01, weight_decay=0.1),
    "adamw, maximized": lambda p: ADAMW(p, lr=0.01, maximize=True),
    "sgd, fused": lambda p: SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adam, fused": lambda p: ADAM(p, lr=0.01, weight_decay=0.1, fused=True),
    "adamw, fused": lambda p: ADAMW(p, lr=0.01, amsgrad=True, fused=True),
    "ortmodule.optim's sgd": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_pytorch_does_to_the_last_bit(name: str, tmp_path: Path) -> None:
    module, data = mlp(), pairs(20)
    session = session_for(module, OPTIMIZERS[name], data[0], tmp_path, fusion=False, matmul="aten")
    losses = train_eagerly(module, OPTIMIZERS[name](module.parameters()), data)
    assert train(session, data) == losses
    assert difference(session, module) == 0
    assert session.step_count == 20


def test_default_options_differ_by_rounding_alone(tmp_path: Path) -> None:
    module, data = mlp(), batches(20)
    session = session_for(module, OPTIMIZERS["adamw"], data[0], tmp_path)
    losses = train_eagerly(module, OPTIMIZERS["adamw"](module.parameters()), data)
    assert train(session, data) == pytest.approx(losses, rel=1e-5)
    assert difference(session, module) < 1e-5


@pytest.mark.parametrize("form", [{"decay": "transformers"}, {"state_bits": 8}])
def test_forms_of_our_optimizers_that_have_no_graph_are_refused(form: dict, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="weight decay or states in 8 bits"):
        session_for(mlp(), lambda p: optim.AdamW(p, **form), pairs(1)[0], tmp_path)


def test_groups_have_rates_of_their_own(tmp_path: Path) -> None:
    def grouped(parameters):
        weights = list(parameters)
        return ADAMW([{"params": weights[:2], "lr": 0.1}, {"params": weights[2:], "weight_decay": 0.5}], lr=0.01)

    module, data = mlp(), pairs(5)
    session = session_for(module, grouped, data[0], tmp_path, fusion=False, matmul="aten")
    assert [session.get_learning_rate(group) for group in (0, 1)] == [0.1, 0.01]
    train_eagerly(module, grouped(list(module.parameters())), data)
    train(session, data)
    assert difference(session, module) == 0
    session.set_learning_rate(0.5, group=1)
    assert session.learning_rate == 0.1 and session.get_learning_rate(1) == 0.5
    session.learning_rate = 0.25
    assert session.get_learning_rate(1) == 0.25
    with pytest.raises(InvalidArgumentError, match="2 groups, and no group 2"):
        session.get_learning_rate(2)
    with pytest.raises(InvalidArgumentError, match="from 0 on, got -1"):
        session.set_learning_rate(-1)


def test_goes_on_from_what_a_torch_optimizer_has_learned(tmp_path: Path) -> None:
    module, data = mlp(), pairs(12)
    for number, optimizer_of in enumerate((OPTIMIZERS["sgd with dampening"], OPTIMIZERS["adam with everything"])):
        own = copy.deepcopy(module)
        optimizer = optimizer_of(own.parameters())
        train_eagerly(own, optimizer, data[:6])
        folder = tmp_path / str(number)
        export_training_artifacts(own, nn.MSELoss(), optimizer, data[0], folder)
        session = TrainingSession(folder, fusion=False, matmul="aten")
        train_eagerly(own, optimizer, data[6:])
        train(session, data[6:])
        assert difference(session, own) == 0


def test_gradients_are_added_up_until_zero_grad(tmp_path: Path) -> None:
    module, data = mlp(), pairs(4)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path, fusion=False, matmul="aten")
    for x, y in data:
        (nn.functional.mse_loss(module(x), y) * 0.25).backward()
        session.train_step(x, y, gradient_scale=0.25)
    for name, parameter in module.named_parameters():
        assert torch.equal(session.get_gradient(name), parameter.grad), name
    session.zero_grad()
    assert session.get_gradient("0.weight") is None
    with pytest.raises(InvalidArgumentError, match="train_step comes before optimizer_step"):
        session.optimizer_step()
    assert session.step_count == 0


def test_gradients_are_clipped_as_torch_clips_them(tmp_path: Path) -> None:
    module, data = mlp(), pairs(3)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path, fusion=False, matmul="aten")
    with pytest.raises(InvalidArgumentError, match="train_step comes before clip_grad_norm"):
        session.clip_grad_norm(1.0)
    for most, (x, y) in zip((0.1, 100.0, 0.0), data, strict=True):
        module.zero_grad()
        session.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        session.train_step(x, y)
        assert session.clip_grad_norm(most) == nn.utils.clip_grad_norm_(module.parameters(), most).item()
        for name, parameter in module.named_parameters():
            assert torch.equal(session.get_gradient(name), parameter.grad), name
    with pytest.raises(InvalidArgumentError, match="from 0 on, got -1"):
        session.clip_grad_norm(-1)


def test_a_linear_schedule_is_torchs(tmp_path: Path) -> None:
    module, data = mlp(), batches(10)
    session = session_for(module, OPTIMIZERS["adamw"], data[0], tmp_path)
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / 3 if step < 3 else max(0.0, (8 - step) / 5)
    )
    session.set_linear_schedule(3, 8)
    for number, batch in enumerate(data):
        assert session.learning_rate == schedule.get_last_lr()[0], number
        train(session, [batch])
        optimizer.step()
        schedule.step()
        if number == 4:
            session.save_checkpoint(tmp_path / "middle")
            session = TrainingSession(tmp_path, checkpoint=tmp_path / "middle")
    with pytest.raises(InvalidArgumentError, match="got 3 of 3"):
        session.set_linear_schedule(3, 3)


def test_a_checkpoint_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    module, data = mlp(), batches(10)
    whole = session_for(module, OPTIMIZERS["adamw"], data[0], tmp_path)
    half = TrainingSession(tmp_path)
    train(whole, data)
    train(half, data[:5])
    half.learning_rate = 0.01
    half.save_checkpoint(tmp_path / "half.safetensors")
    other = TrainingSession(tmp_path)
    other.load_checkpoint(tmp_path / "half.safetensors")
    assert other.step_count == 5 and other.learning_rate == 0.01
    train(other, data[5:])
    for name, session in (("whole", whole), ("other", other)):
        session.save_checkpoint(tmp_path / name)
    assert same_files(tmp_path / "whole", tmp_path / "other")


def test_batchnorm_and_dropout_are_in_their_modes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))
    data = pairs(6)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path, dropout="torch", fusion=False, matmul="aten")
    torch.manual_seed(5)
    losses = train_eagerly(module, OPTIMIZERS["sgd"](module.parameters()), data)
    torch.manual_seed(5)
    assert train(session, data) == losses
    assert difference(session, module) == 0
    module.eval()
    loss, scores = session.eval_step(*data[0])
    assert session.output_names == ["loss", "output"]
    assert torch.equal(scores, module(data[0][0])) and loss == nn.functional.mse_loss(scores, data[0][1])
    assert difference(session, module) == 0


def test_frozen_and_tied_parameters_stay_so(tmp_path: Path) -> None:
    module = Tied()
    module.norm.bias.requires_grad_(False)
    tokens = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(0))
    session = session_for(module, OPTIMIZERS["adamw"], (tokens, tokens), tmp_path, fusion=False, matmul="aten")
    assert session.parameter_names == ["embedding.weight", "norm.weight"]
    assert session.tensor_names == ["embedding.weight", "norm.weight", "norm.bias", "scale"]
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    losses = train_eagerly(module, optimizer, [(tokens, tokens)] * 5)
    assert train(session, [(tokens, tokens)] * 5) == pytest.approx(losses, rel=1e-5)
    assert difference(session, module) < 1e-5, "`scale` is no part of a state_dict, `head.weight` is one"
    fresh = Tied()
    fresh.load_state_dict(session.state_dict())
    session.export_model_for_inference(tmp_path / "model.onnx")
    names = [tensor.name for tensor in onnx.load(tmp_path / "model.onnx").graph.initializer]
    assert names.count("embedding.weight") == 1 and "head.weight" not in names


def test_tensors_are_copied_in_and_out(tmp_path: Path) -> None:
    module, data = mlp(), batches(2)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path)
    weight = session.get_tensor("0.weight")
    weight.zero_()
    assert torch.equal(session.get_tensor("0.weight"), module[0].weight)
    session.set_tensor("0.weight", weight.numpy())
    assert not session.get_tensor("0.weight").any()
    other = mlp(seed=3)
    session.load_state_dict(other.state_dict())
    assert difference(session, other) == 0
    with pytest.raises(InvalidArgumentError, match="no tensor '0.wieght'; did you mean '0.weight'"):
        session.get_tensor("0.wieght")
    with pytest.raises(InvalidArgumentError, match=r"'0.weight' is of Float and shape \[16, 8\]"):
        session.set_tensor("0.weight", torch.zeros(8, 16))
    with pytest.raises(InvalidArgumentError, match="missing: .*'0.bias'"):
        session.load_state_dict({"0.weight": weight})


def test_any_batch_size_and_arrays(tmp_path: Path) -> None:
    module, data = mlp(), batches(1)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path)
    assert session.input_names == ["input", "target"]
    for size in (1, 3, 40):
        x, y = torch.randn(size, 8), torch.randint(4, (size,))
        eager = nn.functional.cross_entropy(module(x), y).item()
        assert session.train_step(x.numpy(), y.numpy()).item() == pytest.approx(eager, rel=1e-5)
        assert session.eval_step(input=x, target=y)[0].item() == pytest.approx(eager, rel=1e-5)


def test_wrong_inputs_are_named_and_change_nothing(tmp_path: Path) -> None:
    module, data = mlp(), batches(1)
    session = session_for(module, OPTIMIZERS["sgd"], data[0], tmp_path)
    x, y = data[0]
    wrong = [
        ((x,), {}, "takes .'input', 'target'., got 1 by position"),
        ((x, y, y), {}, "got 3 by position"),
        ((x,), {"label": y}, "by name"),
        ((x.double(), y), {}, "'input'"),
        ((x[:, :7], y), {}, "'input'"),
        ((x, y[:5]), {}, "target|batch"),
        ((x, "labels"), {}, "takes tensors and arrays, got str"),
        ((None, y), {}, "got NoneType"),
    ]
    for args, kwargs, text in wrong:
        with pytest.raises(InvalidArgumentError, match=text):
            session.train_step(*args, **kwargs)
    with pytest.raises((InvalidArgumentError, ORTModuleError)):
        session.train_step(x, y + 100)
    assert difference(session, module) == 0
    session.zero_grad()
    train(session, data)


def test_checkpoints_of_other_models_and_broken_files_change_nothing(tmp_path: Path) -> None:
    data = batches(2)
    session = session_for(mlp(), OPTIMIZERS["adamw"], data[0], tmp_path / "a")
    other = session_for(nn.Linear(8, 4), OPTIMIZERS["adamw"], data[0], tmp_path / "b")
    before = session.state_dict()
    other.save_checkpoint(tmp_path / "other")
    session.save_checkpoint(tmp_path / "own")
    whole = (tmp_path / "own").read_bytes()
    (tmp_path / "short").write_bytes(whole[:-1])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(np.random.default_rng(0).bytes(4000))
    train(session, data[:1])
    trained = session.state_dict()
    with pytest.raises(InvalidArgumentError, match="is of another model: it has no '0.(bias|weight)'"):
        session.load_checkpoint(tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="is of another model: it has no '0.(bias|weight)'"):
        TrainingSession(tmp_path / "a", checkpoint=tmp_path / "other")
    wider = session_for(
        nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 4)), OPTIMIZERS["adamw"], data[0], tmp_path / "c"
    )
    wider.save_checkpoint(tmp_path / "wider")
    for load in (session.load_checkpoint, lambda path: TrainingSession(tmp_path / "a", checkpoint=path)):
        with pytest.raises(InvalidArgumentError, match=r"is of another model: its '0.*\[20"):
            load(tmp_path / "wider")
    with pytest.raises(InvalidArgumentError, match="nowhere' cannot be read"):
        session.load_checkpoint(tmp_path / "nowhere")
    for name in ("short", "empty", "noise"):
        with pytest.raises(ORTModuleError, match="is no whole safetensors file"):
            session.load_checkpoint(tmp_path / name)
    assert all(torch.equal(trained[n], t) for n, t in session.state_dict().items())
    session.load_checkpoint(tmp_path / "own")
    assert all(torch.equal(before[n], t) for n, t in session.state_dict().items())


def test_a_model_for_inference_runs_in_the_onnxruntime_package(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.5), nn.Linear(6, 4))
    data = batches(3)
    session = session_for(module, OPTIMIZERS["adamw"], data[0], tmp_path)
    train(session, data)
    session.export_model_for_inference(tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    run = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    scores = run.run(None, {"input": data[0][0].numpy()})[0]
    assert np.allclose(scores, session.eval_step(*data[0])[1].numpy(), atol=1e-5)
    with pytest.raises(InvalidArgumentError, match="no output 'nothing'; it has 'output'"):
        session.export_model_for_inference(tmp_path / "model.onnx", ["nothing"])
    assert onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has no training artifacts"):
        TrainingSession(tmp_path / "nowhere")
    for text in ("", "[]", "{}", '{"format": "ortmodule training artifacts", "version": 1}'):
        (tmp_path / "artifacts.json").write_text(text)
        with pytest.raises(ORTModuleError, match="does not describe training artifacts"):
            TrainingSession(tmp_path)
    (tmp_path / "artifacts.json").write_text('{"format": "ortmodule training artifacts", "version": 9}')
    with pytest.raises(ORTModuleError, match="is of version 9"):
        TrainingSession(tmp_path)
    session_for(mlp(), OPTIMIZERS["sgd"], batches(1)[0], tmp_path)
    for options, text in (({"device": "toaster"}, "toaster"), ({"matmul": "slow"}, "slow"), ({"dropout": "no"}, "no")):
        with pytest.raises(ORTModuleError, match=text):
            TrainingSession(tmp_path, **options)
