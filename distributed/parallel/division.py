"""Which part of a parameter is whose: by a module's style, and as arithmetic on tensors.

Not here: which module has which style (plan.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ortmodule.distributed.parallel import styles as kinds
from ortmodule.distributed.parallel.styles import Style

__all__ = ["Division", "divisions_of"]


@dataclasses.dataclass(frozen=True)
class Division:
    """An axis of a parameter that is divided among ranks.

    Attributes:
        dim: the axis.
        size: how long it is in all.
        parts: of how many equal blocks it consists, each of which is divided.
        fill: the axis is filled up with zeros to a multiple of the ranks.
    """

    dim: int
    size: int
    parts: int = 1
    fill: bool = False

    def part(self, whole: torch.Tensor, world: int, rank: int) -> torch.Tensor:
        """What a rank has of `whole`, in memory of its own."""
        if self.fill and self.size % world:
            more = -(-self.size // world) * world - self.size
            whole = F.pad(whole, (0, 0) * (whole.dim() - 1 - self.dim) + (0, more))
        blocks = whole.unflatten(self.dim, (self.parts, world, -1))
        return blocks.select(self.dim + 1, rank).flatten(self.dim, self.dim + 1).clone()

    def whole(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the ranks' parts are of."""
        blocks = [part.unflatten(self.dim, (self.parts, -1)) for part in parts]
        together = torch.stack(blocks, self.dim + 1).flatten(self.dim, self.dim + 2)
        return together.narrow(self.dim, 0, self.size)

    def elements(self, shape: torch.Size, world: int) -> int:
        """How many of a parameter of that shape a rank has."""
        return shape.numel() // max(self.size, 1) * -(-self.size // world)


def divisions_of(module: Any, style: Style) -> dict[str, Division]:
    """How a style divides the parameters of a module, by their names in it."""
    if isinstance(style, kinds.Column):
        names = ["weight"] if module.bias is None else ["weight", "bias"]
        return dict.fromkeys(names, Division(0, module.out_features, style.parts))
    if isinstance(style, kinds.Row):
        return {"weight": Division(1, module.in_features)}
    if isinstance(style, kinds.Vocabulary):
        names = ["weight"] if getattr(module, "bias", None) is None else ["weight", "bias"]
        return dict.fromkeys(names, Division(0, module.weight.shape[0], fill=True))
    if isinstance(style, kinds.Experts):
        return {f"experts.{name}": Division(0, p.shape[0]) for name, p in module.experts.named_parameters()}
    return {}
