"""Every collective outside of a graph: free functions over torch.distributed, which count what they move.

Not here: collectives inside of a graph (csrc/ops/collective), and who waits how long for whom (agreement.py).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

__all__ = [
    "ModelParts",
    "Ranks",
    "Volume",
    "all_gather",
    "all_gather_for_graphs",
    "all_reduce",
    "broadcast",
    "broadcast_all",
    "combine_parts",
    "model_parts",
    "reduce_scatter",
    "set_model_parts",
]

# Torch 2.13 has other names for them.
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclasses.dataclass
class Volume:
    """Bytes of the operands of collectives since the counter was made: what was reduced, gathered and, of small things
    alike on all ranks, agreed on. By the ring algorithm a rank sends (world - 1) / world of them.
    """

    reduced: int = 0
    gathered: int = 0
    agreed: int = 0

    def __sub__(self, other: Volume) -> Volume:
        return Volume(self.reduced - other.reduced, self.gathered - other.gathered, self.agreed - other.agreed)

    def copy(self) -> Volume:
        return dataclasses.replace(self)


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """Which part of a model this rank has, where parts of one lie on several ranks (tensor, expert, pipeline parallel).

    Attributes:
        groups: of the ranks that have other parts, one a kind of division.
        divided: by the names of the parameters of which this rank has a part, and others of the first group the rest,
            how they are divided (parallel/division.py).
        label: of this rank's part among those of one parameter; None: no parameter is divided.
        counts_whole: whether this rank speaks for the parameters that all of the first group have.
        shared: by the names of the parameters of which ranks that have other parts hold copies (tied ones, in several
            stages), whether this rank speaks for them.
    """

    groups: tuple[dist.ProcessGroup, ...]
    divided: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label: str | None = None
    counts_whole: bool = True
    shared: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def counts(self, name: str) -> bool:
        """Whether a sum over all parts takes this parameter from this rank."""
        return (self.counts_whole or name in self.divided) and self.shared.get(name, True)


_PARTS: weakref.WeakKeyDictionary[Any, ModelParts] = weakref.WeakKeyDictionary()


def set_model_parts(model: Any, parts: ModelParts) -> None:
    """Says of a module which part of a model it is."""
    _PARTS[model] = parts


def model_parts(model: Any) -> ModelParts | None:
    """Which part of a model a module (or the one in an ORTModule) is; None: it is all of it."""
    found = _PARTS.get(model)
    return _PARTS.get(model.module) if found is None and hasattr(model, "module") else found


@dataclasses.dataclass
class Ranks:
    """The ranks that train together.

    Attributes:
        shard: the group that shards are divided among.
        replicate: the group of those that have the same shard; None: there are no others.
        parts: which part of the model these have, and who has the others; None: they have all of it.
        volume: what this rank's collectives have moved.
    """

    shard: dist.ProcessGroup
    replicate: dist.ProcessGroup | None = None
    parts: ModelParts | None = None
    volume: Volume = dataclasses.field(default_factory=Volume)

    @property
    def rank(self) -> int:
        """Whose shard this rank has."""
        return dist.get_rank(self.shard)

    @property
    def world(self) -> int:
        """How many shards there are."""
        return dist.get_world_size(self.shard)

    @property
    def replicas(self) -> int:
        return dist.get_world_size(self.replicate) if self.replicate is not None else 1

    @property
    def is_first_replica(self) -> bool:
        return self.replicate is None or dist.get_rank(self.replicate) == 0


def reduce_scatter(shard: torch.Tensor, whole: torch.Tensor, ranks: Ranks) -> Any:
    """Starts the sum over ranks of `whole` [world * n], of which `shard` [n] gets this rank's part."""
    ranks.volume.reduced += whole.nbytes
    return _REDUCE_SCATTER(shard, whole, group=ranks.shard, async_op=True)


def all_gather(whole: torch.Tensor, shard: torch.Tensor, ranks: Ranks) -> Any:
    """Starts putting all ranks' `shard` [n] into `whole` [world * n]."""
    ranks.volume.gathered += whole.nbytes
    return _ALL_GATHER(whole, shard, group=ranks.shard, async_op=True)


def all_gather_for_graphs(whole: torch.Tensor, shard: torch.Tensor, ranks: Ranks) -> Any:
    """The same; whoever reads views of `whole` in a graph can wait for it there, too (ai.ortmodule::CollectiveWait)."""
    work = all_gather(whole, shard, ranks)
    torch._C._distributed_c10d._register_work(whole, work)
    return _Registered(whole, work)


@dataclasses.dataclass
class _Registered:
    """A collective that torch knows by its result."""

    result: torch.Tensor
    work: Any

    def wait(self) -> None:
        self.work.wait()  # itself: some releases know a result only on the thread that has started its collective
        torch.ops._c10d_functional.wait_tensor(self.result)


def all_reduce(tensor: torch.Tensor, ranks: Ranks, op: Any = dist.ReduceOp.SUM, over_replicas: bool = False) -> None:
    """The sum (or what `op` says) over ranks, in place; over the shards' ranks, or of those with the same shard."""
    group = ranks.replicate if over_replicas else ranks.shard
    if group is not None:
        ranks.volume.agreed += tensor.nbytes
        dist.all_reduce(tensor, op, group=group)


def combine_parts(tensor: torch.Tensor, ranks: Ranks, op: Any = dist.ReduceOp.SUM) -> None:
    """The sum (or what `op` says) over the ranks that have other parts of the model, in place."""
    for group in ranks.parts.groups if ranks.parts is not None else ():
        ranks.volume.agreed += tensor.nbytes
        dist.all_reduce(tensor, op, group=group)


def broadcast(tensor: torch.Tensor, ranks: Ranks, source: int = 0) -> None:
    """Everybody's `tensor` becomes that of the shard group's rank `source` of the first replica."""
    for group, first in ((ranks.replicate, 0), (ranks.shard, source)):
        if group is not None:
            ranks.volume.agreed += tensor.nbytes
            dist.broadcast(tensor, dist.get_global_rank(group, first), group=group)


@torch.no_grad()
def broadcast_all(tensors: Iterable[torch.Tensor], ranks: Ranks) -> None:
    """Tensors of any strides become rank 0's; those on the meta device have nothing to give."""
    for tensor in tensors:
        if not tensor.is_meta and tensor.numel():
            value = tensor.detach().contiguous()
            broadcast(value, ranks)
            if value.data_ptr() != tensor.data_ptr():
                tensor.copy_(value)
