"""What a forward keeps or recomputes between calls: norms and masks of weights, attributes, sparse gradients."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from ortmodule import Options, ORTModule
from tests.support import exports

from .table import compare, rand


def two_layers(change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(change(nn.Linear(4, 8)), nn.ReLU(), change(nn.Linear(8, 3)))


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm by hook": weight_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm by hook": spectral_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_weights_recomputed_at_each_call(name: str) -> None:
    """Of spectral_norm that includes the vectors of the power iteration, which are buffers."""
    eager, module = two_layers(CHANGES[name]), two_layers(CHANGES[name])
    model = ORTModule(module, options=Options(fallback="error"))
    for _ in range(3):
        compare(model, eager, (rand(5, 4),), {})
    for m in (model, eager):
        m.eval()
    with torch.no_grad():
        x = rand(5, 4)
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2, model.report()
    assert type(module[0].weight) in (torch.Tensor, nn.Parameter), "no tensor of the trace may stay behind"


def test_a_tensor_kept_in_an_attribute_is_the_last_calls() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.body(x)
            return self.head(self.hidden)

    eager = Net()
    model = ORTModule(copy.deepcopy(eager))
    model(rand(5, 4))
    x = rand(5, 4)
    torch.testing.assert_close(model(x), eager(x))
    torch.testing.assert_close(model.hidden, eager.hidden)
    for module in (model, eager):
        module.hidden.square().sum().backward()
    torch.testing.assert_close(model.body[0].weight.grad, eager.body[0].weight.grad)
    assert model.report().fallback == "none"


def test_a_sparse_gradient_stays_sparse() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    model = ORTModule(copy.deepcopy(eager))
    ids = torch.tensor([1, 7, 7])
    with pytest.warns(UserWarning, match="sparse gradient"):
        model(ids)
    for module in (model, eager):
        module(ids).sum().backward()
    assert model[0].weight.grad.layout == torch.sparse_coo
    torch.testing.assert_close(model[0].weight.grad.to_dense(), eager[0].weight.grad.to_dense())


def clipped(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    m.first.weight.data = m.first.weight.data.clamp(-0.1, 0.1)
    return m.second(m.first(x))


def averaged(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for kept, given in zip(m.second.parameters(), m.first.parameters(), strict=True):
        kept.data = kept.data * 0.9 + given.data * 0.1
    return m.first(x) + m.second(x)


def moved(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    m.mean.data = m.mean * 0.9 + x.mean(0) * 0.1
    return m.second(m.first(x) - m.mean)


class Keeper(nn.Module):
    """Two layers, an average, and a forward that sets the `.data` of some of them."""

    def __init__(self, run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.run = nn.Linear(4, 4), nn.Linear(4, 4), run
        self.mean = nn.Buffer(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


@pytest.mark.parametrize("run", [clipped, averaged, moved], ids=lambda run: run.__name__)
def test_data_of_a_parameter_or_buffer_is_set(run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    eager = Keeper(run)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for rows in (5, 5, 3, 6):
        compare(model, eager, (rand(rows, 4),), {})
        torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))
    assert exports(model) == 2, model.report()


def shared(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    m.second.weight.data = m.first.weight.data
    return m.second(m.first(x))


def written_later(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value = m.first.weight.detach() * 0.5
    m.second.weight.data = value
    value.add_(1)
    return m.second(m.first(x))


def read_later(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    before = m.second.weight.data
    m.second.weight.data = m.first.weight * 0.5
    return m.second(m.first(x)) * (before - m.second.weight).norm()


@pytest.mark.parametrize("run", [shared, written_later, read_later], ids=lambda run: run.__name__)
def test_data_that_shares_memory_is_set_in_pytorch(run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    eager = Keeper(run)
    model = ORTModule(copy.deepcopy(eager))
    with pytest.warns(UserWarning, match="another's memory"):
        compare(model, eager, (rand(5, 4),), {})
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


@functools.lru_cache
def triangle(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril()


@functools.lru_cache
def boxed(size: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(found=triangle.__wrapped__(size))


@functools.cache
def nested(size: int) -> list[dict[str, types.SimpleNamespace]]:
    return [{"at": types.SimpleNamespace(found=triangle.__wrapped__(size))}]


@pytest.mark.parametrize(
    ("cached", "take"),
    [(triangle, lambda t: t), (boxed, lambda t: t.found), (nested, lambda t: t[0]["at"].found)],
    ids=["a tensor", "in an object", "in objects in a list"],
)
def test_a_tensor_in_an_lru_cache_is_a_real_one(cached: Any, take: Callable[[Any], torch.Tensor]) -> None:
    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return take(cached(x.shape[0])) @ super().forward(x)

    cached.cache_clear()
    torch.manual_seed(0)
    eager = Masked(4, 4)
    model = ORTModule(copy.deepcopy(eager), options=Options(fallback="error"))
    for rows in (5, 3, 6):
        x = rand(rows, 4)
        result = model(x)  # before eager, which would fill the cache
        assert type(take(cached(rows))) is torch.Tensor
        torch.testing.assert_close(result, eager(x))


class Table:
    """Values for the longest sequence so far."""

    def __init__(self) -> None:
        self.rows, self.calls, self.values = 0, 0, torch.zeros(0)

    def first(self, rows: int) -> torch.Tensor:
        self.calls += 1
        if rows > self.rows:
            self.rows, self.values = rows, torch.arange(rows).float().cos()[:, None]
        return self.values[:rows]


@pytest.mark.filterwarnings("ignore:.*changes Python attributes")
def test_a_plain_object_keeps_what_pytorch_would_leave_in_it() -> None:
    class Rotated(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.table = Table()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.table.first(x.shape[0])

    torch.manual_seed(0)
    eager = Rotated()
    module = copy.deepcopy(eager)
    model = ORTModule(module)
    for rows in (5, 3, 6):
        compare(model, eager, (rand(rows, 4),), {})
        assert type(module.table.values) is torch.Tensor
        torch.testing.assert_close(module.table.values, eager.table.values)
        assert (module.table.rows, module.table.calls) == (eager.table.rows, eager.table.calls)
