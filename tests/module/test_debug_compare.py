"""ortmodule.debug.compare names the first node whose numbers part; the dump shows every node of a run."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn as nn

from ortmodule import DebugOptions, InvalidArgumentError, Options, ORTModule
from ortmodule.debug import compare
from tests import zoo
from tests.support import Lambda, mlp


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet18", "lstm"])
def test_a_right_engine_agrees_at_every_node_and_changes_nothing(name: str) -> None:
    sample = zoo.build(name, dropout=0.1)
    before = copy.deepcopy(sample.module.state_dict())
    state = torch.get_rng_state()
    report = compare(ORTModule(sample.module), sample.inputs)
    assert report.equal, str(report)
    assert report.first is None and report.first_gradient is None
    assert len(report.nodes) > len(report.unmatched)
    assert len(report.gradients) >= sum(p.requires_grad for p in sample.module.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    for key, tensor in sample.module.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert all(p.grad is None for p in sample.module.parameters())


class Net(nn.Module):
    """Two blocks; the second one's product is where an error is put in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        h = self.second(h).sigmoid()
        return h.exp()


def test_the_first_wrong_node_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortmodule.capture.convert.ops import TRANSLATORS

    def wrong(c, x):  # a translator that makes the wrong operator
        return c.emit("Tanh", x)

    monkeypatch.setitem(TRANSLATORS, "sigmoid", wrong)
    report = compare(Net(), torch.randn(3, 4))
    assert not report.equal
    assert report.first is not None and report.first.operator == "aten.sigmoid.default"
    assert "test_debug_compare.py" in report.first.source and "sigmoid()" in report.first.source
    before = [d for d in report.nodes if not d.parted]
    assert {"aten.relu.default"} <= {d.operator for d in before}
    text = str(report)
    assert "first node whose numbers part" in text and "sigmoid" in text


def test_a_wrong_gradient_is_named_where_the_forward_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return g * Scale.factor

    class WithFunction(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(Scale.apply(self.first(x)))

    module = WithFunction()
    module.first.register_parameter("unused", nn.Parameter(torch.ones(1)))
    assert compare(module, torch.randn(3, 4)).equal
    factors = iter([1.0, 2.0])
    monkeypatch.setattr(Scale, "backward", staticmethod(lambda ctx, g: g * next(factors)))
    report = compare(module, torch.randn(3, 4))
    assert report.first is None
    assert report.first_gradient is not None and "first." in report.first_gradient.name


def test_a_forward_with_branches_goes_the_way_of_the_call() -> None:
    class Branching(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            if h.isnan().any():
                raise ValueError("not a number")
            return self.second(h).tanh() if x.sum() > 0 else h.sigmoid()

    module = Branching()
    for sign, operator in ((1, "aten.tanh.default"), (-1, "aten.sigmoid.default")):
        report = compare(module, sign * torch.rand(3, 4))
        assert report.equal and operator in {d.operator for d in report.nodes}, str(report)


def test_a_loss_of_the_users_and_batches_of_every_form() -> None:
    module = Lambda(lambda m, x, scale=1.0: {"y": m.linear(x) * scale, "z": x})
    x = torch.randn(2, 4)
    for batch in (x, (x,), [x, 2.0], {"x": x, "scale": 3.0}):
        report = compare(module, batch, loss=lambda result: result["y"].square().sum())
        assert report.equal and len(report.outputs) == 2, str(report)
    with pytest.raises(InvalidArgumentError, match="scalar"):
        compare(module, x, loss=lambda result: result["y"])
    with pytest.raises(InvalidArgumentError, match="takes a module"):
        compare(lambda x: x, x)


def test_every_node_of_the_first_runs_is_dumped(tmp_path: Path) -> None:
    debug = DebugOptions(dump_nodes=2, onnx_prefix="net", save_path=str(tmp_path))
    model = ORTModule(mlp(), debug, options=Options(fallback="error"))
    for value in (1.0, float("nan"), 2.0):
        model(torch.full((2, 4), value)).sum().backward()
    (file,) = tmp_path.iterdir()
    assert file.name == "net_nodes_00_training.txt"
    text = file.read_text()
    steps = [line for line in text.splitlines() if line.startswith("run ")]
    session = model.report().sessions[0]
    assert len(steps) == 2 * (session.forward_nodes + session.backward_nodes)
    assert any("backward" in step for step in steps) and not any(step.startswith("run 3") for step in steps)
    assert "float32[2, 4] min 1 max 1 mean 1" in text, "the input of run 1"
    assert "8 nan" in text, "the input of run 2"


@pytest.mark.parametrize("value", ["-1", "some"])
def test_a_wrong_number_of_runs_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_DUMP_NODES", value)
    with pytest.raises(InvalidArgumentError, match="dump_nodes"):
        DebugOptions()


def test_the_times_of_the_stages_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    from ortmodule import LogLevel

    with caplog.at_level("INFO", logger="ortmodule"):
        ORTModule(mlp(), DebugOptions(LogLevel.INFO))(torch.ones(2, 4))
    (line,) = [r.message for r in caplog.records if "session of" in r.message]
    assert all(stage in line for stage in ("export", "convert", "gradient", "planned"))
