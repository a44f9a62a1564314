"""What sharded training holds on each rank: by the formula before, counted after.

Not here: activations, which depend on the batch (ORTModule.memory_report), and what is on its way for a moment.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from ortmodule.distributed.policy import Stage, ZeroPolicy

__all__ = ["Memory", "memory_estimate"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one rank, by what they are for. `gradients` between backward and step."""

    parameters: int
    masters: int
    gradients: int
    states: int

    @property
    def total(self) -> int:
        return self.parameters + self.masters + self.gradients + self.states

    def __str__(self) -> str:
        rows = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)] + [("total", self.total)]
        return "\n".join(f"{name:<12}{value / (1 << 20):>12,.1f} MiB" for name, value in rows)


def memory_estimate(
    model: nn.Module | int,
    *,
    stage: int,
    world: int,
    policy: ZeroPolicy | None = None,
    states: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Memory:
    """What a rank will hold of parameters, masters, gradients and states of the optimizer.

    Args:
        model: whose trained parameters count (frozen ones are held whole as well); or a number of elements of `dtype`.
        stage: 1, 2 or 3; 0 for no sharding.
        world: among how many ranks shards are divided.
        policy: as for `zero`; of it the types and the persistence threshold matter.
        states: how many numbers the optimizer keeps per element (Adam 2, SGD with momentum 1).

    With P elements of b bytes, masters of m and gradients summed in g bytes, N ranks (Rajbhandari et al., 2020):
    stage 0: P (b + g + k m [+ m]), stage 1: P (b + g) + P (g' + k m [+ m]) / N, where g' = m is the shard of the mean;
    stage 2: P b + P (m + k m [+ m]) / N; stage 3: P (m + m + k m) / N, for the masters are what is gathered.
    """
    policy = policy or ZeroPolicy()
    sizes = (
        [(model, dtype)]
        if isinstance(model, int)
        else [(p.numel(), p.dtype) for p in model.parameters() if p.requires_grad]
    )
    frozen = 0 if isinstance(model, int) else sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    total = [float(frozen), 0.0, 0.0, 0.0]
    for numel, own in sizes:
        narrow = own.itemsize
        master_dtype = policy.master_dtype or own
        wide = master_dtype.itemsize
        summed = (policy.reduce_dtype or master_dtype).itemsize
        has_master = float(master_dtype != own)
        part = numel / max(world, 1) if stage else numel
        held = stage if numel * narrow >= policy.persistence_bytes or stage < Stage.PARAMETERS else Stage.GRADIENTS
        if held == Stage.PARAMETERS:
            total[1 if has_master else 0] += part * wide
        else:
            total[0] += numel * narrow
            total[1] += has_master * part * wide
        total[2] += numel * summed + part * wide if held == Stage.OPTIMIZER else part * wide
        total[3] += states * part * wide
    return Memory(*map(round, total))
