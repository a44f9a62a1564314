"""A process group as slow as one says: gloo's collectives, which are done when a link of a given speed would have
brought them. One link a rank: a collective starts on it when those before it have ended.

Not here: what is measured with it (overlap.py).
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["SlowGroup", "slow_group"]


@dataclasses.dataclass
class Sent:
    """One collective on the link: when it was asked for, began and ended, in seconds of perf_counter."""

    kind: str
    bytes: int
    asked: float
    begun: float
    ended: float


class SlowGroup(dist.ProcessGroup):
    """Args:
    inner: which brings the values.
    seconds_per_byte: of the operand (what is gathered, or what is summed).

    Attributes:
        sent: what has been on the link since it was last cleared.
    """

    def __init__(self, inner: dist.ProcessGroup, seconds_per_byte: float = 0.0) -> None:
        super().__init__(inner.rank(), inner.size())
        self._inner, self.seconds_per_byte = inner, seconds_per_byte
        self.sent: list[Sent] = []
        self._free = 0.0
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="slow link", daemon=True).start()

    def getBackendName(self) -> str:
        return "slow"

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        return self._send("reduce", tensors[0].nbytes, tensors, self._inner.allreduce, tensors, options)

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        return self._send("broadcast", tensors[0].nbytes, tensors, self._inner.broadcast, tensors, options)

    def barrier(self, options: Any = None) -> Any:
        return self._inner.barrier(options)

    def all_gather_single(self, whole: torch.Tensor, part: torch.Tensor, options: Any = None) -> Any:
        return self._send("gather", whole.nbytes, [whole], _gather(self._inner), whole, part)

    def reduce_scatter_single(self, part: torch.Tensor, whole: torch.Tensor, options: Any = None) -> Any:
        return self._send("reduce", whole.nbytes, [part], _scatter(self._inner), part, whole, options)

    def all_gather_single_coalesced(self, wholes: Any, parts: Any, options: Any = None) -> Any:
        return [self.all_gather_single(*one) for one in zip(wholes, parts, strict=True)][-1]

    def reduce_scatter_single_coalesced(self, parts: Any, wholes: Any, options: Any = None) -> Any:
        return [self.reduce_scatter_single(*one, options) for one in zip(parts, wholes, strict=True)][-1]

    # As torch up to 2.12 names them.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _send(self, kind: str, count: int, results: list[torch.Tensor], call: Any, *args: Any) -> Any:
        asked = time.perf_counter()
        begun = max(asked, self._free)
        self._free = begun + count * self.seconds_per_byte
        self.sent.append(Sent(kind, count, asked, begun, self._free))
        arguments = args if args[-1] is not None else args[:-1]
        future: Any = torch.futures.Future()
        self._asked.put((call(*arguments), self._free, future, results))
        return torch._C._distributed_c10d._create_work_from_future(future)

    def _run(self) -> None:
        while True:
            work, ends, future, results = self._asked.get()
            work.wait()
            time.sleep(max(ends - time.perf_counter(), 0.0))
            future.set_result(results)
            del work, future, results


def _gather(inner: dist.ProcessGroup) -> Any:
    return getattr(inner, "all_gather_single", None) or inner._allgather_base


def _scatter(inner: dist.ProcessGroup) -> Any:
    return getattr(inner, "reduce_scatter_single", None) or inner._reduce_scatter_base


def slow_group(seconds_per_byte: float = 0.0) -> SlowGroup:
    """One over all ranks of the default group, which torch knows by a name."""
    made: list[SlowGroup] = []

    def make(store: Any, rank: int, world: int, timeout: Any) -> SlowGroup:
        inner = dist.ProcessGroupGloo(store, rank, world, timeout)
        made.append(SlowGroup(inner, seconds_per_byte))
        return made[0]

    if "slow" not in dist.Backend.backend_list:
        dist.Backend.register_backend("slow", lambda *given: _make[0](*given), devices=["cpu"])
    _make[:] = [make]
    dist.new_group(backend="slow")
    return made[0]


_make: list[Any] = []
