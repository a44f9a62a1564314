"""DistributedDataParallel around an ORTModule: two gloo processes train as two processes of eager DDP do.

So do modules whose forward has collectives in it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from ortmodule import InvalidArgumentError, Options, ORTModule
from tests.distributed.spawn import on_ranks
from tests.support import mlp

WAYS: list[dict[str, Any]] = [
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"static_graph": True},
]


class Net(nn.Module):
    """Two linear layers with BatchNorm's buffers between them, and a layer that takes no part."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.bn, self.b, self.unused = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.bn(self.a(x))))


def wrapped(module: nn.Module) -> ORTModule:
    return ORTModule(module, options=Options(fallback="error"))


def train(model: DistributedDataParallel, rank: int, accumulate: bool) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        batches = [torch.randn(6, 8) for _ in range(1 + accumulate)]
        for i, x in enumerate(batches):
            with contextlib.nullcontext() if i == len(batches) - 1 else model.no_sync():
                loss = model(x).square().mean()
                loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check_training(rank: int) -> None:
    for way in WAYS:
        # Rank 1 starts from other weights, which DDP replaces by rank 0's.
        ours = DistributedDataParallel(wrapped(Net(rank)), **way)
        eager = DistributedDataParallel(Net(rank), **way)
        accumulate = "static_graph" not in way
        assert train(ours, rank, accumulate) == pytest.approx(train(eager, rank, accumulate), abs=1e-6), way
        state, expected = ours.state_dict(), eager.state_dict()
        assert list(state) == list(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-6, msg=f"{name} {way}")
        assert str(ours.load_state_dict(expected)) == "<All keys matched successfully>"
        assert len(ours.module.report().exports) == 1


class Wide(nn.Module):
    """Layers of 1 MiB each: every one is a segment of the backward."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def check_buckets_are_ready_early(rank: int) -> None:
    """The first bucket's collective starts before the last gradient is computed."""
    inner = wrapped(Wide(6))
    model = DistributedDataParallel(inner, bucket_cap_mb=1)
    events: list[str] = []

    def hook(state, bucket):  # DDP refuses annotations that are text
        events.append("bucket")
        tensor = bucket.buffer()
        return dist.all_reduce(tensor.div_(2), async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(None, hook)
    x = torch.full((4, 512), 0.01 * (rank + 1))
    model(x).square().mean().backward()
    session = inner._manager.transitions()[0].session
    session.observe(lambda phase, *_: events.append("node") if phase == "backward" else None)
    events.clear()
    model(x).square().mean().backward()
    first, last = events.index("bucket"), len(events) - 1 - events[::-1].index("node")
    assert first < last, events
    assert events.count("bucket") >= 3
    between = [i for i, event in enumerate(events) if event == "bucket" and i < last]
    assert len(between) >= 3, events


class Reduced(torch.autograd.Function):
    """The sum over the processes, written in place as tensor-parallel layers do it."""

    @staticmethod
    def forward(ctx, x):  # torch passes a context of its own
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 1


class Parallel(Net):
    """A custom Function with a collective in its forward, and a collective of the forward's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Reduced.apply(self.a(x))
        with torch.no_grad():
            mean = hidden.mean(0)
            dist.all_reduce(mean)
        return self.b(torch.tanh(hidden - mean / 2))


def check_collectives_in_forward(rank: int) -> None:
    ours, eager = wrapped(Parallel(0)), Parallel(0)
    for step in range(3):
        torch.manual_seed(100 * step + rank)
        x = torch.randn(6 + step, 8)
        out, expected = ours(x), eager(x)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
        out.square().sum().backward()
        expected.square().sum().backward()
    for (name, ours_at), eager_at in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours_at.grad, eager_at.grad, rtol=1e-4, atol=1e-4, msg=name)


def work(rank: int) -> str:
    check_training(rank)
    check_buckets_are_ready_early(rank)
    check_collectives_in_forward(rank)
    return "done"


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_train_as_eager_ddp_does() -> None:
    assert on_ranks(2, work) == ["done", "done"]


@pytest.mark.parametrize("outer", [DistributedDataParallel, nn.DataParallel])
def test_the_wrong_order_of_wrappers_is_refused_with_the_right_one(outer: type[nn.Module]) -> None:
    module = outer.__new__(outer)
    nn.Module.__init__(module)
    with pytest.raises(InvalidArgumentError, match=rf"{outer.__name__}\(ORTModule\(model\)\)"):
        ORTModule(module)


def test_an_outer_module_loads_the_weights_of_an_ortmodule_in_it() -> None:
    model = nn.Sequential(ORTModule(mlp()), nn.Linear(3, 2))
    other = nn.Sequential(mlp(), nn.Linear(3, 2))
    assert str(model.load_state_dict(other.state_dict())) == "<All keys matched successfully>"
    torch.testing.assert_close(model(torch.ones(2, 4)), other(torch.ones(2, 4)))
