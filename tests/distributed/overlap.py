"""How much of the communication a step waits for: `python -m tests.distributed overlap`.

Two ranks train layers of which each computes (sleeps) for a given time, over a link of a given speed (slow_group.py):
neither depends on how busy the machine is. What is exposed is by how much a step takes longer than the same step over a
link that costs nothing; what communication there is in all is the time for which the link was busy.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import ZeroPolicy, zero
from tests.distributed.slow_group import SlowGroup, slow_group

LAYERS, WIDTH = 6, 128
FORWARD, BACKWARD = 0.025, 0.05  # seconds of a layer
BUCKET = 4 * WIDTH * WIDTH  # one layer's


@torch.library.custom_op("ortmodule_tests::computes", mutates_args=())
def computes(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


@computes.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return computes(gradient, ctx.seconds), None


def _setup(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:
    ctx.seconds = inputs[1] * BACKWARD / FORWARD


computes.register_autograd(_backward, setup_context=_setup)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = computes(torch.tanh(layer(x)), FORWARD)
        return x.square().mean()


def losses_of_one_process(count: int) -> list[float]:
    """Of the same training, which computes for no time."""
    model, x = Layers(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = []
    for _ in range(count):
        h = x
        for layer in model.layers:
            h = torch.tanh(layer(h))
        loss = h.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def batch() -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


@dataclasses.dataclass
class Exposed:
    """Seconds of a step: over a link that costs nothing, over the slow one, and for which that was busy."""

    free: float
    slow: float
    busy: float
    first: float  # from the first bucket's start to the end of backward
    losses: list[float]

    @property
    def share(self) -> float:
        return max(self.slow - self.free, 0.0) / self.busy


def exposed(link: SlowGroup, stage: int, share: float, steps: int = 3, overlap: bool = True) -> Exposed:
    """`share`: how long a rank's collectives of a step take, in the time that the step computes."""
    mesh = DeviceMesh.from_group(link, "cpu", mesh=torch.arange(dist.get_world_size()))
    model: nn.Module = ORTModule(Layers(), options=Options(fallback="error"))
    policy = ZeroPolicy(
        bucket_bytes=BUCKET,
        overlap_gather=overlap,
        overlap_reduce=overlap,
        mesh=mesh,
        prefetch_bytes=2 * BUCKET if overlap else 1,
    )
    model, optimizer = zero(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=stage, policy=policy)
    x = batch()
    done, losses = 0.0, []

    def step() -> float:
        nonlocal done
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        done = time.perf_counter()
        optimizer.step()
        losses.append(loss.item())
        return time.perf_counter() - start

    volume = (2 if stage < 3 else 3) * LAYERS * BUCKET
    for _ in range(2):
        step()
    times = []
    for speed in (0.0, share * LAYERS * (FORWARD + BACKWARD) / volume):
        link.seconds_per_byte = speed
        step()  # gathers of the step before are waited for in the next one
        took, busy, first = [], [], []
        for _ in range(steps):
            dist.barrier()
            link.sent.clear()
            took.append(step())
            busy.append(sum(one.ended - one.begun for one in link.sent))
            first.append(done - next(one.asked for one in link.sent if one.kind == "reduce"))
        best = min(range(steps), key=took.__getitem__)
        times.append((took[best], busy[best], first[best]))
    optimizer.wait()
    return Exposed(times[0][0], times[1][0], times[1][1], times[1][2], losses)


def all_cases(rank: int, cases: list[tuple[int, float, bool]], steps: int = 3) -> list[Exposed]:
    """By stage, share and whether anything overlaps."""
    del rank
    link = slow_group()
    return [exposed(link, stage, share, steps, overlap) for stage, share, overlap in cases]
