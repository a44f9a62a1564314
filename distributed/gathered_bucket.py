"""A bucket of parameters that are divided themselves (stage 3): every rank has its shard of their values alone.

The parameters keep shape and type, and their storage is empty. A captured graph gathers them (sharded_graph.py); what a
backward adds to the shard's `.grad` is summed over ranks already. `gathered` puts the values back for a while.
Not here: the rewriting of graphs, and buckets that are whole (bucket.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ortmodule.distributed import collectives
from ortmodule.distributed.bucket import BucketState, shard_values
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.layout import BucketLayout
from ortmodule.distributed.policy import ZeroPolicy
from ortmodule.distributed.shard import Shard

__all__ = ["GatheredBucket"]


class GatheredBucket:
    """Args:
    layout: where the parameters would lie.
    params: they, in its order; their storage is emptied.

    Attributes:
        leaf: [layout.shard_numel], this rank's shard in the optimizer's type; what a graph gathers.
        dtype: of the parameters.
    """

    def __init__(self, layout: BucketLayout, params: Sequence[nn.Parameter], ranks: Ranks, policy: ZeroPolicy) -> None:
        self.layout, self.params = layout, list(params)
        self._ranks, self._again = ranks, policy.regather
        first = params[0]
        self.dtype, self.gather_device = first.dtype, first.device
        flat = torch.zeros(layout.numel, dtype=first.dtype, device=first.device)
        with torch.no_grad():
            for slot, param in zip(layout.slots, params, strict=True):
                flat[slot.start : slot.start + slot.numel].view(slot.shape).copy_(param)
                # A storage of its own, which can be emptied, and strides that do not depend on what it was.
                param.data = torch.empty(slot.shape, dtype=first.dtype, device=first.device)
                param.untyped_storage().resize_(0)
        if policy.broadcast:
            collectives.broadcast(flat, ranks)
        own = flat[ranks.rank * layout.shard_numel :][: layout.shard_numel]
        self.leaf = nn.Parameter(own.to(policy.master_dtype or first.dtype, copy=True))
        self.shard = Shard(layout, ranks.rank, shard_values(self.leaf.detach(), policy))
        self.used: set[int] = set()  # slots that some graph reads
        self.state = BucketState.IDLE
        self.filled: set[int] = set()
        self.arrived: set[int] = set()
        self.is_gathered = False

    # -- gradients: those of the leaf, which the graph has summed ------------------------------------------------------

    def leaves(self) -> list[nn.Parameter]:
        return [self.leaf]

    def is_full(self) -> bool:
        return bool(self.arrived)

    def take(self, slot: int) -> None:
        del slot  # the leaf is the only one
        volume, whole = self._ranks.volume, self.layout.numel
        volume.reduced += whole * self.leaf.element_size()
        volume.gathered += whole * self.dtype.itemsize * (2 if self._again else 1)  # by forward, and by backward
        self.filled |= self.used
        self.arrived.add(0)
        self.state = BucketState.FILLING

    def start_reduce(self) -> None:
        self.state = BucketState.REDUCED

    def finish_reduce(self, agreement: Any) -> torch.Tensor:
        """The mean over ranks [layout.shard_numel]; what the leaf has got, which it keeps no more."""
        del agreement
        gradient, self.leaf.grad = self.leaf.grad, None
        self.filled.clear()
        self.arrived.clear()
        if gradient is None:
            return torch.zeros(self.layout.shard_numel, dtype=self.leaf.dtype, device=self.leaf.device)
        if self._ranks.replicas > 1:
            collectives.all_reduce(gradient, self._ranks, over_replicas=True)
        return gradient.div_(self._ranks.world * self._ranks.replicas)

    def clear(self, set_to_none: bool = True) -> None:
        self.filled.clear()
        self.state, self.leaf.grad = BucketState.IDLE, None
        self.shard.clear(set_to_none)

    # -- values -----------------------------------------------------------------------------------------------------

    def start_publish(self) -> None:
        """What graphs gather becomes what the optimizer has made; they gather it when they read it."""
        if self.shard.values.data_ptr() != self.leaf.data_ptr():
            self.leaf.detach().copy_(self.shard.values)

    def adopt_values(self, source: int) -> None:
        """Nothing: what is written into gathered parameters is divided when they are emptied."""
        del source

    @torch.no_grad()
    def gather(self) -> None:
        """Puts the values into the parameters' storage."""
        own = self.leaf.detach().to(self.dtype)
        whole = torch.empty(self.layout.numel, dtype=self.dtype, device=own.device)
        collectives.all_gather(whole, own, self._ranks).wait()
        for slot, param in zip(self.layout.slots, self.params, strict=True):
            param.untyped_storage().resize_(math.prod(slot.shape) * param.element_size())
            param.copy_(whole[slot.start : slot.start + slot.numel].view(slot.shape))
        self.is_gathered = True

    @torch.no_grad()
    def release(self, source: int | None) -> None:
        """Empties the storage; the shards become what was written on rank `source`, if any."""
        if source is not None:
            whole = torch.zeros(self.layout.numel, dtype=self.dtype, device=self.leaf.device)
            for slot, param in zip(self.layout.slots, self.params, strict=True):
                whole[slot.start : slot.start + slot.numel].view(slot.shape).copy_(param)
            collectives.broadcast(whole, self._ranks, source)
            self.leaf.detach().copy_(whole[self._ranks.rank * self.layout.shard_numel :][: self.layout.shard_numel])
            if self.shard.values.data_ptr() != self.leaf.data_ptr():
                self.shard.values.copy_(self.leaf.detach())
        for param in self.params:
            param.untyped_storage().resize_(0)
        self.is_gathered = False

    def device_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds for the bucket between steps, by kind."""
        gradient = self.leaf.grad.nbytes if self.leaf.grad is not None else 0
        return {
            "parameters": self.leaf.nbytes if self.leaf.dtype == self.dtype else 0,
            "masters": 0 if self.leaf.dtype == self.dtype else self.leaf.nbytes,
            "gradients": gradient + self.shard.gradient_bytes(),
        }
