"""Sums gradients over ranks while backward runs.

A hook on each parameter moves its gradient into the bucket when it is final. Buckets start in one order on all ranks,
when they are full; what has no gradient on this rank counts as zeros. When backward is done, the ranks have their
shards' means, and agree in one small collective on which parameters have got a gradient anywhere and whether all
gradients are finite.
Not here: the memory (bucket.py), the step (optimizer.py).
"""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.bucket import BucketState
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.errors import DistributedError

__all__ = ["Reducer"]


class Reducer:
    """Args:
    buckets: in the order in which they are summed: that in which backward is expected to fill them.
    overlap: they start while backward runs.
    decides: the ranks look whether gradients are finite.

    Attributes:
        finite: whether all gradients since the last clear() were finite on all ranks.
        pending: whether a backward has left gradients here that were not summed.
        events: the last things that happened: ("reduce", a bucket's number) and ("finish", 0).
    """

    def __init__(self, ranks: Ranks, agreement: Agreement, overlap: bool, decides: bool) -> None:
        self._ranks, self._agreement, self._overlap, self._decides = ranks, agreement, overlap, decides
        self.buckets: list[Any] = []
        self.finite, self.pending = True, False
        self.stale = self._warned = False  # a step was made with the gradients there are
        self.events: collections.deque[tuple[str, int]] = collections.deque(maxlen=1000)
        self._started = 0
        self._within = self._sync = False
        self._syncs = True
        self._handles: list[Any] = []
        self._backwards = 0

    def add_buckets(self, buckets: Sequence[Any]) -> None:
        self.buckets += buckets
        for bucket in buckets:
            for slot, leaf in enumerate(bucket.leaves()):
                hook = functools.partial(self._on_gradient, bucket, slot)
                self._handles.append(leaf.register_post_accumulate_grad_hook(hook))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within leave their gradients on this rank, to be summed by the first one after."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def sync(self) -> None:
        """Sums what backwards within no_sync() have left."""
        if self.pending:
            self._sync = True
            self._finish()

    def clear(self, set_to_none: bool = True) -> None:
        for bucket in self.buckets:
            bucket.clear(set_to_none)
        self.finite, self.pending, self.stale, self._within, self._started = True, False, False, False, 0

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # -- during backward --------------------------------------------------------------------------------------------

    def _on_gradient(self, bucket: Any, slot: int, leaf: nn.Parameter) -> None:
        if not self._within:
            self._begin()
        if bucket.state is BucketState.REDUCING:
            raise DistributedError(
                f"{bucket.layout.slots[slot].name} gets a gradient after its bucket was summed: a backward runs within "
                "the backward (checkpoint with use_reentrant=True); use use_reentrant=False, or "
                "ZeroPolicy(overlap_reduce=False)"
            )
        bucket.take(slot)
        if self._sync and self._overlap:
            self._start_full()

    def _begin(self) -> None:
        self._within, self._sync, self._started = True, self._syncs, 0
        if self.stale and not self._warned:
            self._warned = True
            warnings.warn("gradients of the step before are still there: call optimizer.zero_grad()", stacklevel=2)
        self._backwards += 1
        for bucket in self.buckets:
            bucket.arrived.clear()
        self._agreement.reached(f"backward {self._backwards}")
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _start_full(self) -> None:
        while self._started < len(self.buckets) and self.buckets[self._started].is_full():
            self._start()

    def _start(self) -> None:
        self.events.append(("reduce", self._started))
        self.buckets[self._started].start_reduce()
        self._started += 1

    def _finish(self) -> None:
        """When backward is done."""
        self._within = False
        self.pending = not self._sync
        if self.pending:
            return
        while self._started < len(self.buckets):
            self._start()
        self._started = 0
        self.events.append(("finish", 0))
        filled = [frozenset(bucket.filled) for bucket in self.buckets]
        gradients = [bucket.finish_reduce(self._agreement) for bucket in self.buckets]
        used = self._agreed(filled, gradients)
        for bucket, gradient, slots in zip(self.buckets, gradients, used, strict=True):
            bucket.shard.add(gradient, slots)
        if not self.finite:
            for bucket in self.buckets:
                bucket.shard.spoil()

    def _agreed(self, filled: Sequence[frozenset[int]], gradients: Sequence[torch.Tensor]) -> list[set[int]]:
        """Which slots of each bucket have got a gradient on any rank; `finite` becomes what all ranks found."""
        counts = [len(bucket.layout.slots) for bucket in self.buckets]
        flags = torch.zeros(1 + sum(counts), dtype=torch.uint8, device=gradients[0].device)
        if self._decides:
            flags[0] = not all(map(_is_finite, gradients))
        at, places = 1, []
        for slots, count in zip(filled, counts, strict=True):
            places.append(at)
            for slot in slots:
                flags[at + slot] = 1
            at += count
        collectives.all_reduce(flags, self._ranks, dist.ReduceOp.MAX)
        collectives.all_reduce(flags, self._ranks, dist.ReduceOp.MAX, over_replicas=True)
        if self._decides:
            collectives.combine_parts(flags[:1], self._ranks, dist.ReduceOp.MAX)
        said = flags.tolist()
        self.finite = self.finite and not said[0]
        return [{i for i in range(count) if said[at + i]} for at, count in zip(places, counts, strict=True)]


def _is_finite(gradient: torch.Tensor) -> bool:
    return not gradient.numel() or bool(torch.linalg.vector_norm(gradient, float("inf")).isfinite())
