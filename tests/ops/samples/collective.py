"""Collectives of a group of one rank, where each gives back what it is given; more ranks: core/test_collectives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..table import Case, Row, rand

OWN = "ai.ortmodule"
GROUP = "ortmodule.tests.alone"


@functools.cache
def group_of_one() -> Any:
    """A process group with this process alone, which is not torch's default one, with the name GROUP."""
    from torch._C import _distributed_c10d as c10d

    store = c10d.HashStore()
    group = c10d.ProcessGroup(store, 0, 1)
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, c10d.ProcessGroupGloo(store, 0, 1))
    group._set_group_name(GROUP)
    return group  # torch's table of names holds it weakly


def register() -> None:
    """Puts the group in torch's table of names where it is not there: who destroys process groups empties the table."""
    from torch._C import _distributed_c10d as c10d

    try:
        c10d._resolve_process_group(GROUP)
    except RuntimeError:
        c10d._register_process_group(GROUP, group_of_one())


def cases(dtype: torch.dtype) -> Sequence[Case]:
    register()
    attributes = {"group": GROUP, "world": 1}
    return [Case((rand(4, 3, dtype=dtype),), attributes), Case((rand(7, dtype=dtype),), attributes)]


def same(x: torch.Tensor, group: str, world: int) -> torch.Tensor:
    return x * 1


ROWS = [
    *(
        Row(op, same, cases, OWN, cpu_alone=True)  # the group is gloo's
        for op in ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "CopyToRanks")
    ),
    Row("CollectiveWait", lambda x: x * 1, lambda dtype: [Case((rand(4, 3, dtype=dtype),))], OWN),
]
