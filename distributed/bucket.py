"""A bucket of parameters that are whole on every rank (stages 1 and 2): their values and gradients in flat memory.

Gradients are copied in as they become final and taken from the parameters; when all are there, they are summed over the
ranks into this rank's shard. After a step the shards are gathered into the parameters again.
Not here: when that happens (reducer.py), and parameters that are themselves divided (gathered_bucket.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ortmodule.distributed import collectives
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.layout import BucketLayout, pack
from ortmodule.distributed.policy import ZeroPolicy
from ortmodule.distributed.shard import Shard

__all__ = ["Bucket", "BucketState", "packed", "shard_values", "whole_buckets"]


class BucketState(enum.Enum):
    """Where a bucket is in its step."""

    IDLE = "no gradient of this step has come"
    FILLING = "some gradients are there"
    REDUCING = "the sum over ranks is on its way"
    REDUCED = "the shard has its gradient"


def packed(
    params: Sequence[nn.Parameter], names: Mapping[nn.Parameter, str], policy: ZeroPolicy, world: int
) -> Iterator[tuple[BucketLayout, list[nn.Parameter]]]:
    """Buckets of parameters of one type and device, in the order of the parameters."""
    for kind in dict.fromkeys((p.dtype, p.device) for p in params):
        alike = [p for p in params if (p.dtype, p.device) == kind]
        limit = max(policy.bucket_bytes // alike[0].element_size(), 1)
        for places, layout in pack([names[p] for p in alike], [p.shape for p in alike], limit, world):
            yield layout, [alike[i] for i in places]


def whole_buckets(
    params: Sequence[nn.Parameter], names: Mapping[nn.Parameter, str], ranks: Ranks, policy: ZeroPolicy, keeps: bool
) -> list[Any]:
    """Buckets of parameters that stay whole on every rank. One of which ranks with other parts of the model have copies
    is alone in its own, which is the same there: sums over ranks then round alike, and copies stay equal.
    """
    shared = ranks.parts.shared if ranks.parts is not None else {}
    alone = [[p] for p in params if names[p] in shared]
    runs = [[p for p in params if names[p] not in shared], *alone]
    return [
        Bucket(layout, some, ranks, policy, keeps)
        for run in runs
        for layout, some in packed(run, names, policy, ranks.world)
    ]


def shard_values(shard: torch.Tensor, policy: ZeroPolicy) -> torch.Tensor:
    """What the optimizer updates: `shard` itself, or a copy in the type and at the place that the policy asks for."""
    device = torch.device("cpu") if policy.offload == "cpu" else shard.device
    dtype = policy.master_dtype or shard.dtype
    return shard if (device, dtype) == (shard.device, shard.dtype) else shard.to(device=device, dtype=dtype)


class Bucket:
    """Args:
    layout: where the parameters lie.
    params: they, in its order; their values move into flat memory.
    keeps: whether the memory of whole gradients stays (stage 1).
    """

    def __init__(
        self, layout: BucketLayout, params: Sequence[nn.Parameter], ranks: Ranks, policy: ZeroPolicy, keeps: bool
    ) -> None:
        self.layout, self.params = layout, list(params)
        self._ranks, self._keeps, self._waited_in_graphs = ranks, keeps, policy.overlap_gather
        first = params[0]
        self.flat = torch.zeros(layout.numel, dtype=first.dtype, device=first.device)
        with torch.no_grad():
            for slot, param in zip(layout.slots, params, strict=True):
                view = self.flat[slot.start : slot.start + slot.numel].view(slot.shape)
                view.copy_(param)
                param.data = view
        if policy.broadcast:
            collectives.broadcast(self.flat, ranks)
        self._own = self.flat[ranks.rank * layout.shard_numel :][: layout.shard_numel]
        self.shard = Shard(layout, ranks.rank, shard_values(self._own, policy))
        self._reduce_dtype = policy.reduce_dtype or self.shard.values.dtype
        self.state = BucketState.IDLE
        self.filled: set[int] = set()  # slots whose gradients are in the buffer
        self.arrived: set[int] = set()  # the same of this backward alone
        self._buffer: torch.Tensor | None = None
        self._reduced: torch.Tensor | None = None
        self._work: Any = None

    @property
    def gather_device(self) -> torch.device:
        """Where this rank's collectives run."""
        return self.flat.device

    # -- gradients --------------------------------------------------------------------------------------------------

    def leaves(self) -> list[nn.Parameter]:
        """What gets the gradients: slot by slot."""
        return self.params

    def is_full(self) -> bool:
        return len(self.arrived) == len(self.params)

    def take(self, slot: int) -> None:
        """Moves a parameter's gradient into the buffer."""
        param = self.params[slot]
        gradient = param.grad
        assert gradient is not None
        if self._buffer is None:
            self._buffer = torch.empty(self.layout.numel, dtype=self._reduce_dtype, device=self.flat.device)
        at = self.layout.slots[slot].start
        place = self._buffer[at : at + param.numel()].view(param.shape)
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if slot in self.filled:
            place.add_(dense)
        else:
            place.copy_(dense)
            self.filled.add(slot)
        param.grad = None
        self.arrived.add(slot)
        self.state = BucketState.FILLING

    def start_reduce(self) -> None:
        """Starts the sum over ranks; what has got no gradient here counts as zeros."""
        if self._buffer is None:
            self._buffer = torch.zeros(self.layout.numel, dtype=self._reduce_dtype, device=self.flat.device)
        else:
            for i, slot in enumerate(self.layout.slots):
                if i not in self.filled:
                    self._buffer[slot.start : slot.start + slot.numel].zero_()
            self._buffer[self.layout.used :].zero_()
        self._reduced = torch.empty(self.layout.shard_numel, dtype=self._reduce_dtype, device=self.flat.device)
        self._work = collectives.reduce_scatter(self._reduced, self._buffer, self._ranks)
        self.state = BucketState.REDUCING

    def finish_reduce(self, agreement: Any) -> torch.Tensor:
        """Waits for it; the mean over ranks [layout.shard_numel]."""
        agreement.wait(self._work, f"the sum of the gradients of {self.layout.slots[0].name} and others")
        reduced = self._reduced
        assert reduced is not None
        self._work = self._reduced = None
        if not self._keeps:
            self._buffer = None
        if self._ranks.replicas > 1:
            collectives.all_reduce(reduced, self._ranks, over_replicas=True)
        self.filled.clear()
        self.arrived.clear()
        self.state = BucketState.REDUCED
        return reduced.div_(self._ranks.world * self._ranks.replicas)

    def clear(self, set_to_none: bool = True) -> None:
        """Forgets gradients, those that were not reduced, too."""
        self.filled.clear()
        self.arrived.clear()
        self.state = BucketState.IDLE
        if not self._keeps:
            self._buffer = None
        self.shard.clear(set_to_none)

    # -- values -----------------------------------------------------------------------------------------------------

    def start_publish(self) -> Any:
        """Starts gathering all ranks' shards into the parameters; what to wait for.

        Raises:
            DistributedError: somebody has moved or converted the parameters since `zero`.
        """
        self._hold_parameters()
        if self.shard.values.data_ptr() != self._own.data_ptr():
            self._own.copy_(self.shard.values)
        gather = collectives.all_gather_for_graphs if self._waited_in_graphs else collectives.all_gather
        return gather(self.flat, self._own, self._ranks)

    def _hold_parameters(self) -> None:
        """`model.to(device)` may have put the parameters elsewhere, with the values that they have here."""
        for slot, param in zip(self.layout.slots, self.params, strict=True):
            view = self.flat[slot.start : slot.start + slot.numel].view(slot.shape)
            if param.data_ptr() == view.data_ptr():
                continue
            if (param.device.type, param.dtype) != (view.device.type, view.dtype):
                raise DistributedError(
                    f"{slot.name} was {view.dtype} on {view.device} when zero() was called and is {param.dtype} on "
                    f"{param.device}: move and convert the model before zero()"
                )
            param.data = view

    def adopt_values(self, source: int) -> None:
        """Parameters and shards become what the parameters are on rank `source`, where somebody has written them."""
        collectives.broadcast(self.flat, self._ranks, source)
        if self.shard.values.data_ptr() != self._own.data_ptr():
            self.shard.values.copy_(self._own)

    def device_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds for the bucket, by kind."""
        master = 0 if self.shard.values.data_ptr() == self._own.data_ptr() else self.shard.values.nbytes
        buffer = self._buffer.nbytes if self._buffer is not None else 0
        return {
            "parameters": self.flat.nbytes,
            "masters": master,
            "gradients": buffer + self.shard.gradient_bytes(),
        }
