"""Collectives inside of a model: torch operators that run in PyTorch, and are nodes where an ORTModule captures.

Each stands for the record of the same name in csrc/ops/collective, whose gradient it has. `alike` says that all ranks
go on with the result in the same way, so that what they make of it counts once: what holds between the layers of tensor
parallelism (Shoeybi et al., Megatron-LM, 2019), where `copy_to_ranks` and `all_reduce` are each other's gradients.
Not here: collectives outside of a model (distributed/collectives.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from ortmodule.capture.convert.custom_node import register_operator_mapping

__all__ = ["GroupRanks", "copied", "exchanged", "gathered_along", "maximum", "split_along", "summed", "summed_parts"]

_NAMESPACE = "ortmodule_ranks"


@dataclasses.dataclass(frozen=True)
class GroupRanks:
    """A process group by its name, as a graph holds it: `world` ranks, of which this process is number `rank`."""

    name: str
    world: int
    rank: int

    @staticmethod
    def of(group: dist.ProcessGroup) -> GroupRanks:
        return GroupRanks(group.group_name, dist.get_world_size(group), dist.get_rank(group))


def _wait(result: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.wait_tensor(result)


@torch.library.custom_op(f"{_NAMESPACE}::copy_to_ranks", mutates_args=())
def _copy_to_ranks(x: torch.Tensor, group: str, world: int) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op(f"{_NAMESPACE}::all_reduce", mutates_args=())
def _all_reduce(x: torch.Tensor, group: str, world: int, alike: int, reduction: str) -> torch.Tensor:
    return _wait(torch.ops._c10d_functional.all_reduce(x.contiguous(), reduction, group))


@torch.library.custom_op(f"{_NAMESPACE}::all_gather", mutates_args=())
def _all_gather(x: torch.Tensor, group: str, world: int, alike: int) -> torch.Tensor:
    # Into a tensor that is given, where the group can: as csrc/ops/collective has it, which says why.
    known: Any = dist.distributed_c10d._resolve_process_group
    if not known(group)._device_types:
        return _wait(torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), world, group))
    y = x.new_empty((x.shape[0] * world, *x.shape[1:]))
    return _wait(torch.ops._c10d_functional.all_gather_into_tensor_out(x.contiguous(), world, group, out=y))


@torch.library.custom_op(f"{_NAMESPACE}::reduce_scatter", mutates_args=())
def _reduce_scatter(x: torch.Tensor, group: str, world: int) -> torch.Tensor:
    return _wait(torch.ops._c10d_functional.reduce_scatter_tensor(x.contiguous(), "sum", world, group))


@torch.library.custom_op(f"{_NAMESPACE}::all_to_all", mutates_args=())
def _all_to_all(x: torch.Tensor, group: str, world: int) -> torch.Tensor:
    sizes = [x.shape[0] // world] * world
    return _wait(torch.ops._c10d_functional.all_to_all_single(x.contiguous(), sizes, sizes, group))


def _same_shape(x: torch.Tensor, *args: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_copy_to_ranks.register_fake(lambda x, group, world: torch.empty_like(x))
_all_reduce.register_fake(_same_shape)
_all_to_all.register_fake(_same_shape)
_all_gather.register_fake(lambda x, group, world, alike: x.new_empty((x.shape[0] * world, *x.shape[1:])))
_reduce_scatter.register_fake(lambda x, group, world: x.new_empty((x.shape[0] // world, *x.shape[1:])))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.arguments = inputs[1:]


def _of_copy(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _all_reduce(grad, *ctx.arguments, 1, "sum"), None, None


def _of_reduce(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    group, world, alike, reduction = ctx.arguments
    if reduction != "sum":
        raise NotImplementedError(f"only a sum over ranks has a gradient, not '{reduction}'")
    back = _copy_to_ranks(grad, group, world) if alike else _all_reduce(grad, group, world, 0, "sum")
    return back, None, None, None, None


def _of_gather(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    group, world, alike = ctx.arguments
    part = _reduce_scatter(grad, group, world)
    return part * (1.0 / world) if alike else part, None, None, None


def _of_scatter(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _all_gather(grad, *ctx.arguments, 0), None, None


def _of_exchange(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _all_to_all(grad, *ctx.arguments), None, None


for _operator, _gradient, _record in (
    (_copy_to_ranks, _of_copy, "CopyToRanks"),
    (_all_reduce, _of_reduce, "AllReduce"),
    (_all_gather, _of_gather, "AllGather"),
    (_reduce_scatter, _of_scatter, "ReduceScatter"),
    (_all_to_all, _of_exchange, "AllToAll"),
):
    _operator.register_autograd(_gradient, setup_context=_keep_arguments)
    register_operator_mapping(_operator._qualname, "ai.ortmodule", _record)


def copied(x: torch.Tensor, ranks: GroupRanks) -> torch.Tensor:
    """`x`, which is the same on all ranks, for each to make something else of; its gradient is summed over them."""
    return x if ranks.world == 1 else _copy_to_ranks(x, ranks.name, ranks.world)


def summed(x: torch.Tensor, ranks: GroupRanks) -> torch.Tensor:
    """The sum over ranks, on each of them, of which all make the same: what is passed back is what is given."""
    return x if ranks.world == 1 else _all_reduce(x, ranks.name, ranks.world, 1, "sum")


def maximum(x: torch.Tensor, ranks: GroupRanks) -> torch.Tensor:
    """The largest over ranks; no gradient."""
    return x if ranks.world == 1 else _all_reduce(x.detach(), ranks.name, ranks.world, 0, "max")


def gathered_along(x: torch.Tensor, ranks: GroupRanks, dim: int, alike: bool = False) -> torch.Tensor:
    """All ranks' `x`, one after another along an axis. Its gradient is this rank's part of the sum over ranks; where
    all go on `alike`, of their mean.
    """
    if ranks.world == 1:
        return x
    first = x.movedim(dim, 0)
    return _all_gather(first, ranks.name, ranks.world, int(alike)).movedim(0, dim)


def split_along(x: torch.Tensor, ranks: GroupRanks, dim: int) -> torch.Tensor:
    """This rank's part along an axis of `x`, which is the same on all ranks.

    Raises:
        ValueError: the axis cannot be divided among the ranks.
    """
    if ranks.world == 1:
        return x
    length = _divided(x, ranks, dim)
    return copied(x, ranks).narrow(dim, ranks.rank * length, length)


def summed_parts(x: torch.Tensor, ranks: GroupRanks, dim: int) -> torch.Tensor:
    """This rank's part along an axis of the sum over ranks.

    Raises:
        ValueError: the axis cannot be divided among the ranks.
    """
    if ranks.world == 1:
        return x
    _divided(x, ranks, dim)
    return _reduce_scatter(x.movedim(dim, 0), ranks.name, ranks.world).movedim(0, dim)


def exchanged(x: torch.Tensor, ranks: GroupRanks) -> torch.Tensor:
    """Part r of the first axis goes to rank r; part r of the result is what rank r has sent."""
    if ranks.world == 1:
        return x
    _divided(x, ranks, 0)
    return _all_to_all(x, ranks.name, ranks.world)


def _divided(x: torch.Tensor, ranks: GroupRanks, dim: int) -> int:
    size = x.shape[dim]
    if size % ranks.world:
        raise ValueError(f"an axis of {size} elements cannot be divided among {ranks.world} ranks")
    return size // ranks.world
