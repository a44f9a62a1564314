"""A sharded optimizer's state as torch's over whole parameters, and back.

Gathered bucket by bucket and kept in host memory of rank 0 alone, so that no rank holds more than a bucket besides.
Not here: state on disk, which needs no gathering (checkpoint/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ortmodule.distributed import collectives
from ortmodule.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ortmodule.distributed.optimizer import ZeroOptimizer

__all__ = ["full_state", "load_full_state"]


def is_divided(value: Any, piece: torch.Tensor) -> bool:
    """Whether an entry of a piece's state is one number per element."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == piece.shape


def full_state(optimizer: ZeroOptimizer) -> dict[str, Any] | None:
    """On all ranks; the state on rank 0, None elsewhere. See ZeroOptimizer.full_state_dict."""
    optimizer.wait()
    states: dict[str, dict[str, Any]] = {}
    for bucket in optimizer.buckets:
        _gather_bucket(optimizer, bucket, states)
    if dist.get_rank() != 0:
        return None
    groups: list[dict[str, Any]] = []
    indices: dict[str, int] = {}
    for group, params in zip(optimizer.param_groups, optimizer.parameters_of, strict=True):
        numbers = [indices.setdefault(optimizer.name_of(p), len(indices)) for p in params]
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": numbers})
    return {"state": {indices[name]: state for name, state in states.items()}, "param_groups": groups}


def _gather_bucket(optimizer: ZeroOptimizer, bucket: Any, states: dict[str, dict[str, Any]]) -> None:
    shard, ranks = bucket.shard, optimizer.ranks
    mine: dict[int, dict[str, Any]] = {}
    for place, piece in zip(shard.places, shard.pieces, strict=True):
        state = optimizer.state.get(piece, {})
        mine[place.slot] = {k: v.dtype if is_divided(v, piece) else v for k, v in state.items()}
    everyone: list[Any] = [None] * ranks.world
    dist.all_gather_object(everyone, mine, group=ranks.shard)
    slots: dict[int, dict[str, Any]] = {}
    for one in everyone:
        slots.update(one)
    keys = {k: v for state in slots.values() for k, v in state.items() if isinstance(v, torch.dtype)}
    for key, dtype in sorted(keys.items()):
        part = torch.zeros(shard.values.numel(), dtype=dtype, device=bucket.gather_device)
        for place, piece in zip(shard.places, shard.pieces, strict=True):
            if is_divided(value := optimizer.state.get(piece, {}).get(key), piece):
                part[place.at : place.at + place.length].copy_(value)
        whole = torch.empty(bucket.layout.numel, dtype=dtype, device=part.device)
        collectives.all_gather(whole, part, ranks).wait()
        for i, state in slots.items():
            slot = bucket.layout.slots[i]
            if dist.get_rank() == 0 and isinstance(state.get(key), torch.dtype):
                state[key] = whole[slot.start : slot.start + slot.numel].view(slot.shape).cpu().clone()
    for i, state in slots.items():
        if state:
            states[bucket.layout.slots[i].name] = state


def load_full_state(optimizer: ZeroOptimizer, full: Mapping[str, Any]) -> None:
    """Each rank takes its pieces of torch's state dict over whole parameters."""
    from ortmodule.distributed.optimizer import state_part

    groups = full.get("param_groups", [])
    if [len(g["params"]) for g in groups] != [len(p) for p in optimizer.parameters_of]:
        raise InvalidArgumentError(
            f"the state has groups of {[len(g['params']) for g in groups]} parameters, the optimizer of "
            f"{[len(p) for p in optimizer.parameters_of]}"
        )
    of_name = {}
    for saved, params, group in zip(groups, optimizer.parameters_of, optimizer.param_groups, strict=True):
        group.update({k: v for k, v in saved.items() if k != "params"})
        for number, param in zip(saved["params"], params, strict=True):
            if number in full["state"]:
                of_name[optimizer.name_of(param)] = full["state"][number]
    optimizer.state.clear()
    for bucket in optimizer.buckets:
        for place, piece in zip(bucket.shard.places, bucket.shard.pieces, strict=True):
            slot = bucket.layout.slots[place.slot]
            if slot.name in of_name:
                optimizer.state[piece] = state_part(of_name[slot.name], slot.shape, place, piece)
