"""The whole state dict of a parallelized model, under the names and with the shapes that it had, and back.

Not here: checkpoints of sharded training, which need no gathering (checkpoint/).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from ortmodule import ORTModule
from ortmodule.distributed.parallel.parallelize import layout_of
from ortmodule.errors import InvalidArgumentError

__all__ = ["load_whole_state_dict", "whole_state_dict"]


@torch.no_grad()
def whole_state_dict(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """The state dict of the model before it was divided, in host memory; on all ranks of its group, of which the first
    gets it and the others None. One tensor at a time is gathered. (At stage 3 of `zero` within `gathered(optimizer)`.)

    Raises:
        InvalidArgumentError: the model is not parallelized.
    """
    layout = layout_of(model)
    if layout is None:
        raise InvalidArgumentError("the model is not parallelized: its state_dict() is whole")
    inner = model.module if isinstance(model, ORTModule) else model
    world, first = dist.get_world_size(layout.group), dist.get_rank(layout.group) == 0
    out = {}
    for name, value in inner.state_dict().items():
        division = layout.divisions.get(name)
        if division is None:
            out[name] = value.cpu().clone() if first else value
            continue
        parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(world)]
        dist.all_gather(parts, value.contiguous(), group=layout.group)
        if first:
            out[name] = division.whole([part.cpu() for part in parts]).clone()
    return out if first else None


@torch.no_grad()
def load_whole_state_dict(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Takes this rank's part of a state dict of the model before it was divided; every rank is given all of it. (Before
    `zero`, or within `gathered(optimizer, modified_on=...)`.)

    Raises:
        InvalidArgumentError: the model is not parallelized, or the state is of another one.
    """
    layout = layout_of(model)
    if layout is None:
        raise InvalidArgumentError("the model is not parallelized: load_state_dict() takes a whole state")
    inner = model.module if isinstance(model, ORTModule) else model
    own = inner.state_dict()
    if own.keys() != state.keys():
        raise InvalidArgumentError(f"the state is of another model: {min(own.keys() ^ state.keys())} is not in both")
    world, rank = dist.get_world_size(layout.group), dist.get_rank(layout.group)
    for name, value in own.items():
        given, division = state[name], layout.divisions.get(name)
        if division is not None and given.dim() > division.dim and given.shape[division.dim] == division.size:
            given = division.part(given, world, rank)
        if given.shape != value.shape:
            raise InvalidArgumentError(f"{name} of shape {[*state[name].shape]} does not fit the model")
        value.copy_(given)
