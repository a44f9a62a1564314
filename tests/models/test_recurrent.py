"""Recurrent layers train as in eager PyTorch, in every form that torch has, at sizes that change from call to call."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule, export_training_graph

HIDDEN = 6
FORMS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"num_layers": 2, "batch_first": True}),
    "lstm, two directions, dropout": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.3}),
    "lstm, projected": (nn.LSTM, {"proj_size": 3, "bidirectional": True, "num_layers": 2, "batch_first": True}),
    "lstm, no bias": (nn.LSTM, {"bias": False}),
    "gru": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.3}),
    "gru, no bias": (nn.GRU, {"bias": False}),
    "tanh": (nn.RNN, {"bidirectional": True}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2, "batch_first": True}),
}


class Summed(nn.Module):
    """One number from all outputs of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        y, last = self.layer(x, (states if len(states) > 1 else states[0]) if states else None)
        return (
            y.sin().sum() + torch.stack([s.cos().sum() for s in (last if isinstance(last, tuple) else (last,))]).sum()
        )


def step(module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    module.zero_grad()
    torch.manual_seed(3)
    loss = module(*leaves)
    loss.backward()
    return [loss.detach(), *(x.grad for x in leaves), *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("given", [False, True], ids=["no state", "states"])
@pytest.mark.parametrize("name", FORMS)
def test_loss_and_gradients_are_those_of_eager(name: str, given: bool) -> None:
    kind, options = FORMS[name]
    torch.manual_seed(0)
    eager = Summed(kind(8, HIDDEN, **options))
    model = ORTModule(copy.deepcopy(eager), options=Options(dropout="torch", fallback="error"))
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    for steps, batch in ((5, 3), (9, 2), (4, 7)):
        inputs = [torch.randn(*((batch, steps) if options.get("batch_first") else (steps, batch)), 8)]
        if given:
            inputs.append(torch.randn(count, batch, options.get("proj_size", HIDDEN)))
        if given and kind is nn.LSTM:
            inputs.append(torch.randn(count, batch, HIDDEN))
        wanted, got = step(eager, inputs), step(model, inputs)
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(got[1:], wanted[1:], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert model.report().aten_nodes == {}


@pytest.mark.parametrize("name", [n for n in FORMS if "dropout" not in FORMS[n][1]])
def test_the_portable_training_graph_runs_in_the_onnxruntime_package(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    kind, options = FORMS[name]
    torch.manual_seed(0)
    module, x = Summed(kind(8, HIDDEN, **options)), torch.randn(4, 3, 8)
    model = export_training_graph(module, (x,))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    parameters = {n: p.detach().numpy() for n, p in module.named_parameters()}
    others = {i.name: x.numpy() for i in session.get_inputs() if i.name not in parameters}
    ones = {n: torch.ones(()).numpy() for n in others if n.endswith("_grad")}
    results = session.run([f"{n}_grad" for n in parameters], {**others, **parameters, **ones})
    module(x).backward()
    for got, parameter in zip(results, module.parameters(), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), parameter.grad, rtol=1e-4, atol=1e-5)
