"""Parameters that stages on several ranks read (tied ones): one gradient for all copies.

In a step graphs read a stand-in for such a parameter, which shares its memory; its gradients are summed over the ranks
that have a copy when the step's backwards are done, and given to the parameter by a backward of its own, whose hooks
(those of `zero`) hear of it once. So all copies stay equal under one optimizer.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ortmodule.graph_transition import PostExportProcessedModelInfo

__all__ = ["SharedParameters"]


@dataclasses.dataclass
class _Shared:
    parameter: nn.Parameter
    group: dist.ProcessGroup
    stand_in: torch.Tensor


class SharedParameters:
    """Args:
    parameters: by name, those of this rank that others have, too, with the group of them; in the same order on all.
    """

    def __init__(self, parameters: dict[str, tuple[nn.Parameter, dist.ProcessGroup]]) -> None:
        self._shared = {
            name: _Shared(p, group, p.detach().requires_grad_(p.requires_grad))
            for name, (p, group) in parameters.items()
        }

    def in_graph(self, info: PostExportProcessedModelInfo) -> PostExportProcessedModelInfo:
        """Post-export processing: the graph reads the stand-ins."""
        own = {n: self._shared[n].stand_in for n in info.buffer_for_ort_runs if n in self._shared}
        if not own:
            return info
        return dataclasses.replace(
            info,
            buffer_for_ort_runs={**info.buffer_for_ort_runs, **own},
            replaced={**info.replaced, **own},
        )

    def begin(self) -> None:
        """Before a step: an optimizer may have put the parameters elsewhere."""
        for one in self._shared.values():
            one.stand_in.grad = None
            if one.stand_in.data_ptr() != one.parameter.data_ptr():
                one.stand_in.data = one.parameter.data

    def start(self) -> list[tuple[Any, str]]:
        """After the backwards of a step: starts the sums; what to wait for."""
        works = []
        for name, one in self._shared.items():
            if one.stand_in.requires_grad:
                if one.stand_in.grad is None:
                    one.stand_in.grad = torch.zeros_like(one.stand_in)
                work = dist.all_reduce(one.stand_in.grad, group=one.group, async_op=True)
                works.append((work, f"the sum of the gradients of {name} over the stages that read it"))
        return works

    def finish(self) -> None:
        """When they are done: gives the parameters their gradients."""
        for one in self._shared.values():
            if one.stand_in.grad is not None:
                gradient, one.stand_in.grad = one.stand_in.grad, None
                torch.autograd.backward([one.parameter], [gradient])
