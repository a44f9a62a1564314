"""`ortmodule.debug.record`: what is recorded, by which names, and that a file is whole up to where it was cut."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper
from torch import nn

from ortmodule import InferenceSession, InvalidArgumentError, Options, ORTModule
from ortmodule.debug import Recording, diff, record
from tests.sessions.models import F, model_of
from tests.support import mlp


class Net(nn.Module):
    """A buffer, a weight that is frozen, dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.dropout(self.norm(self.first(x)).relu(), 0.3)).square()


def step(model: nn.Module, value: float = 1.0) -> None:
    torch.manual_seed(1)
    model(torch.randn(5, 4) * value).sum().backward()


def test_every_value_of_both_halves_is_there_under_its_name(tmp_path: Path) -> None:
    net = Net()
    model = ORTModule(net, options=Options(fallback="error"))
    with record(model, tmp_path / "a") as recorder:
        for _ in range(3):
            step(model)
        assert recorder.step == 2
    recording = Recording(tmp_path / "a")
    assert recording.steps == (0, 1, 2) and recording.closed and len(recording) == 3
    first = recording.step(0)
    assert [half.half for half in first.halves] == ["forward", "backward"]
    forward, backward = (half.values for half in first.halves)
    kinds = {value.name: value.kind for value in forward}
    assert kinds["x"] == "input" and kinds["first.weight"] == kinds["last.bias"] == "weight"
    assert kinds["norm.running_mean"] == "buffer"
    given = [value.kind == "node" for value in forward]
    assert given == sorted(given), "what a forward is given comes before its nodes"
    assert backward[0].kind == "gradient of output"
    gradients = {value.name for value in backward if value.kind == "gradient"}
    assert gradients == {name for name, p in net.named_parameters() if p.requires_grad}
    weight = next(value.statistics for value in forward if value.name == "last.weight")
    exact = net.last.weight.detach().double()
    assert weight.dtype == "float" and weight.shape == (3, 8) and weight.finite == 24
    assert weight.max == exact.max() and weight.min == exact.min()
    assert weight.mean == pytest.approx(exact.mean().item()) and weight.norm == pytest.approx(exact.norm().item())
    assert weight.deviation == pytest.approx(exact.std(correction=0).item())
    by_hand = net.last.weight.grad
    gradient = next(v.statistics for v in backward if v.kind == "gradient" and v.name == "last.weight")
    assert 3 * gradient.mean == pytest.approx(by_hand.mean().item(), rel=1e-5)
    assert "3 steps, 0 to 2" in str(recording)


def test_recording_changes_nothing_and_captures_nothing_anew(tmp_path: Path) -> None:
    plain, recorded = ORTModule(Net()), ORTModule(Net())
    step(plain), step(recorded)
    with record(recorded, tmp_path / "a"):
        step(plain), step(recorded)
        copy.deepcopy(recorded), pickle.loads(pickle.dumps(recorded))
    step(plain), step(recorded)
    assert len(recorded.report().exports) == 1
    for p, q in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(p, q) and (p.grad is None or torch.equal(p.grad, q.grad))
    for p, q in zip(plain.buffers(), recorded.buffers(), strict=True):
        assert torch.equal(p, q)
    assert Recording(tmp_path / "a").steps == (0,), "neither before nor after, nor of copies"


def test_equal_runs_are_equal_in_every_bit(tmp_path: Path) -> None:
    for name in "ab":
        model = ORTModule(Net())
        with record(model, tmp_path / name):
            for _ in range(3):
                step(model)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.equal and found.steps == 3 and not found.only_a and not found.notes, str(found)
    assert str(found) == "the recordings agree in 3 steps"


def test_every_nth_step_and_what_globs_choose(tmp_path: Path) -> None:
    model = ORTModule(Net())
    with record(model, tmp_path / "a", every=3, first_step=4, names="last*", operators=["*Linear*"]):
        for _ in range(7):
            step(model)
    recording = Recording(tmp_path / "a")
    assert recording.steps == (6, 9)
    values = list(recording.step(6).values())
    assert {"last.weight", "last.bias"} <= {value.name for value in values}
    assert all("last" in value.name or "last" in value.node for value in values), [str(v) for v in values]
    assert recording.header["every"] == 3


def test_several_calls_make_a_step_and_evaluation_makes_none(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    with record(model, tmp_path / "a", calls_per_step=2):
        for _ in range(4):
            step(model)
            with torch.no_grad():
                model(torch.ones(2, 4))
    recording = Recording(tmp_path / "a")
    assert [len(s.halves) for s in recording] == [4, 4]
    with record(model, tmp_path / "b", inference=True), torch.no_grad():
        model(torch.ones(2, 4))
    assert [h.half for s in Recording(tmp_path / "b") for h in s.halves] == ["forward"]


def test_fingerprints_alone(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    with record(model, tmp_path / "a", figures=False):
        step(model)
    values = list(Recording(tmp_path / "a").step(0).values())
    assert all(value.statistics.fingerprint and value.statistics.figures() == "" for value in values)


def test_the_parts_of_a_module_that_runs_partly_in_pytorch(tmp_path: Path) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = mlp(), nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.inner(x)
            print(end=str(h.detach().numpy().sum())[:0])
            return self.outer(h)

    model = ORTModule(Partly())
    with pytest.warns(UserWarning):
        step(model)
    with record(model, tmp_path / "a"):
        step(model)
    halves = Recording(tmp_path / "a").step(0).halves
    assert {half.module for half in halves} == {"inner", "outer"} and len(halves) == 4


def test_a_session_records_each_run_and_its_weights(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = model_of(nodes, {"x": (F, ["n", 3])}, {"y": (F, ["n", 2])}, {"w": np.ones((3, 2), np.float32)})
    session = InferenceSession(model)
    with record(session, tmp_path / "a", every=2):
        for value in range(4):
            session.run(["y"], {"x": np.full((1, 3), value, np.float32)})
    recording = Recording(tmp_path / "a")
    assert recording.steps == (0, 2)
    values = {value.name: value for value in recording.step(2).values()}
    assert values["x"].kind == "input" and values["y"].statistics.mean == 6
    assert "constant" in {value.kind for value in values.values()}


def test_a_killed_run_leaves_its_steps(tmp_path: Path) -> None:
    program = f"""
import os, signal, torch
from ortmodule import ORTModule
from ortmodule.debug import record
from tests.support import mlp
model = ORTModule(mlp())
recorder = record(model, {str(tmp_path / "a")!r})
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    recording = Recording(tmp_path / "a")
    assert recording.steps == (0, 1, 2) and not recording.closed
    assert [len(step.halves) for step in recording] == [2, 2, 2]
    model = ORTModule(mlp())
    with record(model, tmp_path / "b"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    assert diff(tmp_path / "a", tmp_path / "b").equal
    data = recording.path.read_bytes()
    for cut in range(len(data) - 1, 0, -97):  # whatever was on its way when the process ended
        recording.path.write_bytes(data[:cut])
        try:
            shorter = Recording(tmp_path / "a")
        except InvalidArgumentError:
            assert cut < 30
            continue
        assert shorter.steps == tuple(range(len(shorter)))
        assert all(step.halves for step in shorter)
        assert diff(tmp_path / "a", tmp_path / "b").equal


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    with record(model, tmp_path / "a"):
        step(model)
    path = tmp_path / "a" / "rank0.recording"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InvalidArgumentError, match="damaged at byte"):
        list(Recording(tmp_path / "a"))
    path.write_bytes(b"something else\n")
    with pytest.raises(InvalidArgumentError, match="is no recording"):
        Recording(path)
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        Recording(tmp_path / "none")
    with pytest.raises(InvalidArgumentError, match="holds no recording"):
        Recording(tmp_path)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    for wrong, said in (
        ({"every": 0}, "every should be a whole number, 1 or more, got 0"),
        ({"calls_per_step": 1.5}, "calls_per_step"),
        ({"names": [1]}, "names should be globs"),
        ({"operators": "Gemm,,"}, "operators should be globs"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            record(model, tmp_path / "a", **wrong)
    with pytest.raises(InvalidArgumentError, match="expects an ORTModule"):
        record(mlp(), tmp_path / "a")
    with pytest.raises(InvalidArgumentError, match="should be a path"):
        record(model, 3)
    assert not (tmp_path / "a").exists(), "nothing was begun"
    record(model, tmp_path / "a").close()
    with pytest.raises(InvalidArgumentError, match="is there already"):
        record(model, tmp_path / "a")
    record(model, tmp_path / "a", overwrite=True).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="cannot record"):
        record(model, tmp_path / "file")


def test_a_glob_that_fits_nothing_is_said(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    recorder = record(model, tmp_path / "a", names=["0.wieght", "2.*"])
    step(model)
    with pytest.warns(UserWarning, match="nothing fits '0.wieght'; did you mean '0.weight'"):
        recorder.close()
    recorder.close()


def test_what_is_recorded_goes_with_its_model(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    recorder = record(model, tmp_path / "a")
    step(model)
    gone = [weakref.ref(x) for x in (model.module, next(model._sessions()))]
    del model
    gc.collect()
    assert [there() for there in gone] == [None, None]
    recorder.close()


def test_a_full_disk_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    model = ORTModule(mlp())
    recorder = record(model, tmp_path / "a")
    step(model)
    recorder._writer._file = open("/dev/full", "wb", buffering=0)
    with pytest.warns(UserWarning, match="No space left") as said:
        step(model), step(model)
    assert len(said) == 1 and all(p.grad is not None for p in model.parameters())
    recorder.close()
    assert Recording(tmp_path / "a").steps == (0,)


def test_a_forward_that_fails_leaves_what_it_had_made(tmp_path: Path) -> None:
    class Index(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return self.table(i) * x.exp().sum()

    model = ORTModule(Index())
    good, bad = torch.tensor([1]), torch.tensor([9])
    with record(model, tmp_path / "a"):
        model(torch.ones(2), good)
        with pytest.raises(IndexError):
            model(torch.ones(2), bad)
    last = Recording(tmp_path / "a").step(1).halves[0]
    assert not last.whole and 0 < len(last.values) < len(last.layout.values)
