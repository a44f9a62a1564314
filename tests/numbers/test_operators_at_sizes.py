"""Operators that are translated for some arguments, or taken apart, at three sizes through one graph and no ATen node.

Results and gradients beside eager. Not here: special numbers (test_special_points.py), each translation by itself
(tests/capture/test_operators.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.torch_version import TorchVersion

from ortmodule import ORTModule
from tests.support import exports

Shapes = tuple[tuple[Any, ...], ...]
N = "n"  # the size that changes
PAIR: Shapes = ((N, 4), (N, 4))
TRIPLE: Shapes = ((N, 4), (N, 4), (N, 4))
PICTURE: Shapes = ((N, 4, 6, 2),)
LSTM_CELL = nn.LSTMCell(4, 5)
CASES: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "outer": (torch.outer, ((N,), (3,))),
    "inner": (torch.inner, ((N, 4), (2, 4))),
    "tensordot": (
        lambda x, y: (torch.tensordot(x, y, dims=1), torch.tensordot(x, x, dims=([0], [0]))),
        ((N, 4), (4, 2)),
    ),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij") + torch.meshgrid(x, y, indexing="xy"), ((N,), (3,))),
    "cartesian product": (torch.cartesian_prod, ((N,), (3,))),
    "joins": (
        lambda x, y: (
            torch.hstack([x, y]),
            torch.vstack([x, y]),
            torch.dstack([x, y]),
            torch.column_stack([x[:, 0], y]),
        ),
        PAIR,
    ),
    "tile": (lambda x: (x.tile(2, 3), x.tile(2)), ((N, 4),)),
    "trapezoid": (lambda x: (torch.trapezoid(x), torch.cumulative_trapezoid(x, dx=0.5)), ((N, 4),)),
    "power in double": (lambda x: x.float_power(3), ((N, 4),)),
    "closeness": (lambda x, y: x * torch.isclose(x, y, atol=1.0), PAIR),
    "norms": (
        lambda x: (
            torch.linalg.norm(x),
            torch.linalg.matrix_norm(x),
            x.norm(1),
            x.norm(2, 1),
            x.norm(dim=0, keepdim=True),
        ),
        ((N, 4),),
    ),
    "mean of the numbers": (lambda x: x.nanmean(1), ((N, 4),)),
    "distance": (lambda x, y: (F.pairwise_distance(x, y), F.pairwise_distance(x, y, p=1, keepdim=True)), PAIR),
    "cosine embedding loss": (lambda x, y, t: F.cosine_embedding_loss(x, y, t.detach().sign()), ((N, 4), (N, 4), (N,))),
    "triplet loss": (lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True), TRIPLE),
    "ranking loss": (lambda x, y, t: F.margin_ranking_loss(x, y, t.detach().sign(), margin=0.1), TRIPLE),
    "hinge loss": (lambda x, t: F.hinge_embedding_loss(x, t.detach().sign()), PAIR),
    "poisson loss": (lambda x, t: F.poisson_nll_loss(x, t.detach().exp(), full=True), PAIR),
    "one hot": (lambda x: F.one_hot(x.detach().sign().long() + 1, 3).float() @ x[0, :3], ((N, 4),)),
    "GRU cell": (nn.GRUCell(4, 5), ((N, 4), (N, 5))),
    "LSTM cell": (lambda x, h, s: LSTM_CELL(x, (h, s)), ((N, 4), (N, 5), (N, 5))),
    "RNN cell": (nn.RNNCell(4, 5), ((N, 4), (N, 5))),
    "RNN cell with relu": (nn.RNNCell(4, 5, nonlinearity="relu"), ((N, 4), (N, 5))),
    "any and all": (
        lambda x: (x * (x > 0).any(1, keepdim=True), x * (x > 0).all(), x + (x > 1).any((0, 1)), x * (x > 0).any()),
        ((N, 4),),
    ),
    "count": (lambda x: (x * x.sign().relu().count_nonzero(1)[:, None], x * x.count_nonzero()), ((N, 4),)),
    "pixel shuffle": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_shuffle(x[0], 2)), PICTURE),
    "pixel unshuffle": (lambda x: (F.pixel_unshuffle(x, 2), F.pixel_unshuffle(x[0], 2)), PICTURE),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), PICTURE),
    "grid sample": (
        lambda x, g: (
            F.grid_sample(x, g, align_corners=False),
            F.grid_sample(x, g, "nearest", "border", align_corners=True),
            F.grid_sample(x, g, "bicubic", "reflection", align_corners=False),
        ),
        ((N, 2, 5, 6), (N, 3, 4, 2)),
    ),
    "affine grid": (lambda t: F.affine_grid(t, [t.shape[0], 2, 4, 5], align_corners=False), ((N, 2, 3),)),
    "smoothed cross entropy": (
        lambda x, w: F.cross_entropy(x, x.detach().argmin(1), w.detach().exp(), ignore_index=2, label_smoothing=0.1),
        ((N, 5), (5,)),
    ),
    "cross entropy of probabilities": (lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1), PAIR),
}


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def train(module: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor | None]:
    leaves = [t.clone().requires_grad_() for t in given]
    results = module(*leaves)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    sum((r * torch.linspace(0.5, 1.5, r.numel()).reshape(r.shape)).sum() for r in results).backward()
    return [*(r.detach() for r in results), *(t.grad for t in leaves)]


@pytest.mark.parametrize("name", CASES)
def test_one_graph_serves_every_size(name: str) -> None:
    if name == "cross entropy of probabilities" and TorchVersion(torch.__version__) < (2, 13):
        pytest.skip("the one of torch 2.11 and 2.12 takes no symbolic sizes")
    function, shapes = CASES[name]
    torch.manual_seed(0)
    model = ORTModule(Call(function))
    for n in (5, 3, 9, 4):
        given = [torch.randn([n if size == N else size for size in shape]) for shape in shapes]
        for got, expected in zip(train(model, given), train(function, given), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    report = model.report()
    assert report.fallback == "none" and not report.aten_nodes, report.aten_nodes
    assert exports(model) == 2


@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout, F.dropout2d])
def test_a_dropout_that_is_taken_apart_draws_as_eager_does(drop: Callable[..., torch.Tensor]) -> None:
    model = ORTModule(Call(lambda x: drop(x, 0.4, True)))
    for n in (5, 3):
        results = []
        for module in (model, model.module):
            torch.manual_seed(n)
            results.append(train(module, [torch.ones(n, 4, 3, 3)]))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ["GRU cell", "tensordot", "triplet loss", "distance"])
def test_autocast_casts_what_it_casts_in_eager(name: str) -> None:
    function, shapes = CASES[name]

    def under_autocast(*args: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*args)

    model = ORTModule(Call(under_autocast))
    given = [torch.randn([5 if size == N else size for size in shape]) for shape in shapes]
    for got, expected in zip(train(model, given), train(under_autocast, given), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
