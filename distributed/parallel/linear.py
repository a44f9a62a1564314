"""Linear layers that are divided by outputs (column-parallel) or by inputs (row-parallel).

Shoeybi et al., Megatron-LM (2019); with divided sequences: Korthikanti et al., Reducing Activation Recomputation, 2022.
Not here: which module becomes which (apply.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ortmodule.distributed.parallel.collectives import (
    GroupRanks,
    copied,
    gathered_along,
    split_along,
    summed,
    summed_parts,
)

__all__ = ["ColumnLinear", "RowLinear"]


class ColumnLinear(nn.Linear):
    """weight [out / world, in], bias [out / world]: this rank's outputs, of `parts` blocks its part of each."""

    ranks: GroupRanks
    parts: int
    gather: bool
    sequence: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [.., in] (or its part along `sequence`) -> [.., out / world], or [.., out] where it gathers."""
        ranks = self.ranks
        if self.sequence is None:
            whole = copied(input, ranks)
        else:
            whole = gathered_along(input, ranks, self.sequence)
        out = F.linear(whole, self.weight, self.bias)
        if not self.gather or ranks.world == 1:
            return out
        together = gathered_along(out, ranks, -1, alike=True)
        if self.parts == 1:
            return together
        blocks = together.unflatten(-1, (ranks.world, self.parts, -1))
        return blocks.transpose(-3, -2).flatten(-3)


class RowLinear(nn.Linear):
    """weight [out, in / world], bias [out]: the sum over ranks of what each makes of its inputs."""

    ranks: GroupRanks
    split: bool
    sequence: int | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input [.., in / world] (or [.., in], to be split) -> [.., out], or its part along `sequence`."""
        ranks = self.ranks
        own = split_along(input, ranks, -1) if self.split else input
        out = F.linear(own, self.weight)
        bias: torch.Tensor | None = self.bias
        if self.sequence is None:
            out = summed(out, ranks)
        else:
            out = summed_parts(out, ranks, self.sequence)
            bias = None if bias is None else copied(bias, ranks)
        return out if bias is None else out + bias
