"""Exported training graphs: standard ONNX operators alone, and in the stock onnxruntime autograd's gradients."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from torch import nn

from ortmodule import InvalidArgumentError, UnsupportedError, export_training_graph

from ..zoo import STATIC_SEQUENCE, build, loss_of

onnxruntime = pytest.importorskip("onnxruntime")

# Absolute, as the acceptance of exported graphs says.
LIMIT = 1e-4


def run_in_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, torch.Tensor]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    assert not set(names) - set(feeds), "the graph has an input that is neither a tensor of the call nor of the module"
    outputs = session.run(None, {n: feeds[n].detach().numpy() for n in names})
    return {o.name: torch.tensor(v) for o, v in zip(session.get_outputs(), outputs, strict=True)}


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach().clone() for name, tensor in named}


def assert_gradients(module: nn.Module, outputs: dict[str, torch.Tensor]) -> None:
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and f"{name}_grad" in outputs, name
        error = (outputs[f"{name}_grad"] - parameter.grad).abs().max()
        assert error < LIMIT, f"{name}: {error}"


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *((family, sizes) for family in ("mlp", "resnet18", "bert", "gpt2") for sizes in ("static", "dynamic")),
        *((family, "dynamic") for family in ("llama", "vit", "t5", "mamba")),
    ],
)
def test_gradients_in_onnxruntime_are_autograds(family: str, sizes: str) -> None:
    """Dynamic graphs run another batch and another length than the example's."""
    sample = build(family)
    axes = sample.dynamic_axes if sizes == "dynamic" else None
    loss = "loss" if not isinstance(sample.module(**sample.inputs), torch.Tensor) else None
    sample = build(family)
    model = export_training_graph(sample.module, sample.inputs, loss=loss, dynamic_axes=axes)
    onnx.checker.check_model(model)
    assert {n.domain for n in model.graph.node} == {""}
    if axes:
        sample = build(family, batch=5, seq=16 if family in STATIC_SEQUENCE else 9)
    feeds = {**sample.inputs, **tensors_of(sample.module)}
    result = loss_of(sample.module(**sample.inputs))
    result.backward()
    outputs = run_in_onnxruntime(model, feeds)
    assert abs(outputs[loss or "output"] - result.detach()) < LIMIT
    assert_gradients(sample.module, outputs)
    after = tensors_of(sample.module)
    for name in (n for n in outputs if n.endswith("_new")):  # BatchNorm's statistics
        torch.testing.assert_close(outputs[name], after[name.removesuffix("_new")], rtol=1e-4, atol=1e-5)


class Pair(nn.Module):
    """Two results that are no scalars, one scalar, an unused and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 2)
        self.second.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, scalar: bool = False) -> Any:
        a, b = self.first(x), self.second(x).tanh()
        return (a.sum(), b.mean()) if scalar else {"a": a, "b": b}


def test_without_a_scalar_the_graph_takes_the_gradients_of_the_results() -> None:
    module, x = Pair(), torch.randn(5, 4)
    model = export_training_graph(module, x)
    assert {i.name for i in model.graph.input} >= {"x", "a_grad", "b_grad", "first.weight"}
    names = [o.name for o in model.graph.output]
    assert names[:2] == ["a", "b"] and "second.bias_grad" not in names and "unused_grad" not in names
    result = module(x)
    seeds = {"a_grad": torch.randn(5, 3), "b_grad": torch.randn(5, 2)}
    torch.autograd.backward([result["a"], result["b"]], list(seeds.values()))
    outputs = run_in_onnxruntime(model, {"x": x, **seeds, **tensors_of(module)})
    for name in ("first.weight", "first.bias", "second.weight"):
        torch.testing.assert_close(outputs[f"{name}_grad"], module.get_parameter(name).grad)


def test_one_of_several_results_is_the_loss() -> None:
    module, call = Pair(), {"x": torch.randn(5, 4), "scalar": True}
    with pytest.raises(InvalidArgumentError, match=r"output\.0.*output\.1.*loss="):
        export_training_graph(module, call)
    for loss in (1, -1, "output.1"):
        model = export_training_graph(module, call, loss=loss)
        outputs = run_in_onnxruntime(model, {"x": call["x"], **tensors_of(module)})
        module.zero_grad()
        module(**call)[1].backward()
        torch.testing.assert_close(outputs["second.weight_grad"], module.second.weight.grad)
        assert not outputs["first.weight_grad"].any()  # the loss does not depend on it
    for loss in ("nothing", 2):
        with pytest.raises(InvalidArgumentError, match="loss="):
            export_training_graph(module, call, loss=loss)


def test_a_result_that_is_no_scalar_may_be_the_loss() -> None:
    model = export_training_graph(Pair(), (torch.randn(5, 4),), loss="b", dynamic_axes={"x": [0]})
    assert [i.name for i in model.graph.input if i.name.endswith("_grad")] == ["b_grad"]


def test_what_the_forward_sets_on_its_modules_is_no_output() -> None:
    class Noting(Pair):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            result = super().forward(*args, **kwargs)
            self.total, self.kept = result["a"].sum(), result["b"]
            return result

    names = [o.name for o in export_training_graph(Noting(), torch.randn(5, 4)).graph.output]
    assert names == [o.name for o in export_training_graph(Pair(), torch.randn(5, 4)).graph.output]


def test_a_forward_with_branches_is_the_graph_of_the_example() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            if y.isnan().any():
                raise ValueError("not a number")
            return y.tanh().sum() if x.sum() > 0 else y.square().sum()

    module = Branching()
    for x in (torch.rand(3, 4), -torch.rand(3, 4)):
        with pytest.warns(UserWarning, match=r"if x.sum\(\) > 0"):
            model = export_training_graph(module, x)
        assert [p.key for p in model.metadata_props if p.value.endswith(f"is {bool(x.sum() > 0)}")] == ["branch.0"]
        outputs = run_in_onnxruntime(model, {"x": x, **tensors_of(module)})
        module.zero_grad()
        module(x).backward()
        assert_gradients(module, outputs)


def test_an_operator_without_a_standard_form_is_named() -> None:
    class Solve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve(self.w, x).sum()

    with pytest.raises(UnsupportedError, match="ATen.*has no form in standard ONNX operators"):
        export_training_graph(Solve(), torch.randn(3, 2))


def test_bad_arguments_are_said_clearly() -> None:
    with pytest.raises(InvalidArgumentError, match=r"nn\.Module"):
        export_training_graph(lambda x: x, torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'z'"):
        export_training_graph(Pair(), torch.ones(5, 4), dynamic_axes={"z": [0]})
    with pytest.raises(InvalidArgumentError, match="2 axes"):
        export_training_graph(Pair(), torch.ones(5, 4), dynamic_axes={"x": [2]})
    with pytest.raises(InvalidArgumentError, match="requires a gradient"):
        export_training_graph(Pair().requires_grad_(False), torch.ones(5, 4))
