"""Each plain attribute of torch's layers, set to another value, back and again: every call has eager's numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ortmodule import Options, ORTModule
from tests.support import exports

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, IMAGES = (5, 4), (2, 4, 6, 6)
# A layer, and the sizes of its float arguments.
LAYERS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (ROWS,)),
    "BatchNorm1d, cumulative": (lambda: nn.BatchNorm1d(4, momentum=None), (ROWS,)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (IMAGES,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (IMAGES,)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (ROWS,)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (ROWS,)),
    "Conv2d": (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (IMAGES,)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 4, 3), (IMAGES,)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (IMAGES,)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (IMAGES,)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), (IMAGES,)),
    "Dropout": (lambda: nn.Dropout(0.0), (ROWS,)),
    "Softmax": (lambda: nn.Softmax(-1), (ROWS,)),
    "GELU": (lambda: nn.GELU(), (ROWS,)),
    "Hardtanh": (lambda: nn.Hardtanh(), (ROWS,)),
    "LSTM": (lambda: nn.LSTM(4, 4, 2), ((3, 2, 4),)),
    "RNN": (lambda: nn.RNN(4, 4), ((3, 2, 4),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), ((2, 3, 4),) * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), ((2, 3, 4),)),
    "GaussianNLLLoss": (lambda: nn.GaussianNLLLoss(), (ROWS,) * 3),
    "HuberLoss": (lambda: nn.HuberLoss(), (ROWS,) * 2),
    "TripletMarginLoss": (lambda: nn.TripletMarginLoss(), (ROWS,) * 3),
}
# With these eager reads memory that is not the weights'.
UNSAFE = {"hidden_size", "proj_size", "num_layers", "input_size", "bidirectional", "mode", "bias"}


def others(value: Any) -> list[Any]:
    """Values that might stand in an attribute instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 0.5 + 0.1]
    if value is None:
        return [0.5]
    if isinstance(value, tuple) and all(isinstance(one, int) for one in value):
        return [tuple(one + 1 for one in value)]
    return {"mean": ["sum", "none"], "circular": ["zeros"], "bilinear": ["nearest"], "none": ["tanh"]}.get(value, [])


def changes(layer: nn.Module) -> Iterator[tuple[str, str, Any, Any]]:
    """(sub-module, attribute, its value, another one)."""
    recurrent = isinstance(layer, nn.RNNBase)
    for path, module in layer.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and not (recurrent and name in UNSAFE):
                yield from ((path, name, value, other) for other in others(value))


def step(module: nn.Module, sizes: tuple[tuple[int, ...], ...]) -> Any:
    """Results, gradients and buffers of one call; the class of what it raises."""
    torch.manual_seed(1)
    batch = [torch.rand(size).requires_grad_() for size in sizes]
    module.zero_grad()
    try:
        results = [r for r in pytree.tree_leaves(module(*batch)) if isinstance(r, torch.Tensor)]
        sum(r.sum() for r in results).backward()
    except Exception as error:
        return type(error)
    leaves = [*batch, *module.parameters()]
    return [r.detach() for r in results], [leaf.grad for leaf in leaves], [b.clone() for b in module.buffers()]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_attributes_of_the_moment(name: str) -> None:
    make, sizes = LAYERS[name]
    for path, attribute, value, other in changes(make()):
        torch.manual_seed(0)
        eager = make()
        model = ORTModule(copy.deepcopy(eager), options=Options(dropout="torch"))
        for now in (value, other, value, other):
            for module in (eager, model.module):
                vars(module.get_submodule(path))[attribute] = now
            expected, got = step(eager, sizes), step(model, sizes)
            message = f"{path}.{attribute} = {now}"
            if isinstance(expected, type):
                assert isinstance(got, type) and issubclass(got, expected), f"{message}: {got} for {expected}"
            else:
                torch.testing.assert_close(
                    got, expected, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, text=message: f"{text}: {m}"
                )
        assert exports(model), f"{path}.{attribute}: no graph was made"
