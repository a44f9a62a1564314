"""Modules in a region in which each rank has a part of every sequence (sequence parallelism).

Their classes are made of the modules' own: parameters are read through `copied`, so that their gradients are summed
over the ranks; inputs are put together, results split. Not here: the Linears at the region's borders (linear.py).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from ortmodule.distributed.parallel.collectives import copied, gathered_along, split_along

__all__ = ["gather_input", "read_for_a_part", "split_output"]


@functools.cache
def _with_copied_parameters(cls: Any, names: tuple[str, ...]) -> type[nn.Module]:
    def reader(name: str) -> property:
        def read(self: Any) -> Any:
            value = self._parameters[name]
            return None if value is None else copied(value, self.ranks)

        return property(read)

    return type(f"Sequence{cls.__name__}", (cls,), {name: reader(name) for name in names})


def read_for_a_part(module: nn.Module) -> None:
    """From now on `module` computes with a part of each sequence: the gradients of its parameters are summed over
    `module.ranks`.
    """
    for own in module.modules():
        if own is not module:
            own.ranks = module.ranks
        kind: Any = type(own)
        own.__class__ = _with_copied_parameters(kind, tuple(own._parameters))


@functools.cache
def _with_whole_input(cls: Any) -> type[nn.Module]:
    def forward(self: Any, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return cls.forward(self, gathered_along(input, self.ranks, self.dim_of_input), *args, **kwargs)

    return type(f"GatherInput{cls.__name__}", (cls,), {"forward": forward})


def gather_input(module: nn.Module, dim: int) -> None:
    """From now on `module` is given a part, along an axis, of its first argument, and puts it together."""
    module.dim_of_input = dim  # type: ignore[assignment]
    kind: Any = type(module)
    module.__class__ = _with_whole_input(kind)


@functools.cache
def _with_split_output(cls: Any) -> type[nn.Module]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return split_along(cls.forward(self, *args, **kwargs), self.ranks, self.dim_of_output)

    return type(f"SplitOutput{cls.__name__}", (cls,), {"forward": forward})


def split_output(module: nn.Module, dim: int) -> None:
    """From now on `module` gives this rank's part, along an axis, of its result."""
    module.dim_of_output = dim  # type: ignore[assignment]
    kind: Any = type(module)
    module.__class__ = _with_split_output(kind)
