"""How training is sharded: plain data, chosen once.

Not here: what is done with it (zero.py), and what it costs (memory.py).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import torch

from ortmodule.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Stage", "ZeroPolicy"]

_MIB = 1 << 20


class Stage(enum.IntEnum):
    """What is divided among the ranks (Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models, 2020); each stage divides what the one before does, too.
    """

    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


@dataclasses.dataclass(frozen=True)
class ZeroPolicy:
    """Sizes are in bytes, times in seconds.

    Attributes:
        bucket_bytes: parameters whose gradients are reduced together; at stage 3 whose values are gathered together.
        master_dtype: of the shards that the optimizer updates (torch.float32 for parameters in bfloat16); None: that of
            the parameters.
        reduce_dtype: in which gradients are summed; None: the shards'.
        overlap_reduce: buckets are reduced while backward runs; else when it is done.
        overlap_gather: stages 1 and 2: step() does not wait for the new parameters; the next forward does, an
            ORTModule's for each where a layer reads it. Somebody who looks at parameters in between calls
            `optimizer.wait()` first.
        skip_nonfinite: a step whose gradients hold an inf or a NaN on any rank is skipped on all of them.
        offload: "cpu": shards and states of the optimizer lie in host memory, where it runs, too.
        broadcast: parameters and buffers become those of rank 0 when training is set up.
        regather: stage 3: gathered parameters are freed after their last use in forward and gathered again in backward.
        prefetch_bytes: stage 3: what may be on its way ahead of its use.
        persistence_bytes: stage 3: smaller parameters stay whole on every rank, as at stage 2.
        agree_seconds: how long ranks wait for one another where they compare what they have.
        hang_seconds: how long a collective may take until the ranks that are behind are named.
        mesh: one dimension: the ranks that shards are divided among; two: (replicate, shard), hybrid sharding. None:
            all ranks.
        elementwise: whether the optimizer treats each element alone, so that it may see shards; None: tried out.
    """

    bucket_bytes: int = 25 * _MIB
    master_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    overlap_reduce: bool = True
    overlap_gather: bool = False
    skip_nonfinite: bool = True
    offload: str | None = None
    broadcast: bool = True
    regather: bool = True
    prefetch_bytes: int = 64 * _MIB
    persistence_bytes: int = 0
    agree_seconds: float = 10.0
    hang_seconds: float = 60.0
    mesh: DeviceMesh | None = None
    elementwise: bool | None = None

    def __post_init__(self) -> None:
        for name in ("bucket_bytes", "prefetch_bytes", "persistence_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < (name != "persistence_bytes"):
                raise InvalidArgumentError(f"ZeroPolicy({name}=) is a number of bytes, got {value!r}")
        for name in ("agree_seconds", "hang_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"ZeroPolicy({name}=) is a positive time, got {getattr(self, name)!r}")
        for name in ("master_dtype", "reduce_dtype"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
                raise InvalidArgumentError(f"ZeroPolicy({name}=) is a floating torch.dtype, got {value!r}")
        if self.offload not in (None, "cpu"):
            raise InvalidArgumentError(f"ZeroPolicy(offload=) is None or 'cpu', got {self.offload!r}")
        if self.mesh is not None and self.mesh.ndim not in (1, 2):
            raise InvalidArgumentError(f"ZeroPolicy(mesh=) has one or two dimensions, got {self.mesh.ndim}")
