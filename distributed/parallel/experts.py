"""A layer of experts, of which a router chooses a few for each row; the experts lie on one rank, or are divided.

Rows travel by AllToAll in blocks of a fixed size, so many rows for each expert and rank: so that every rank knows how
much comes, and a captured graph has fixed sizes (Lepikhin et al., GShard, 2020). Without a limit no row is dropped.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ortmodule.distributed.parallel.collectives import GroupRanks, exchanged, gathered_along, split_along

__all__ = ["FeedForwardExperts", "MixtureOfExperts"]


class FeedForwardExperts(nn.Module):
    """`experts` layers gelu(x w_in + b_in) w_out + b_out beside one another.

    Parameters have the experts as their first axis: w_in [experts, width, inner], w_out [experts, inner, width].
    """

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(experts, width, inner) / math.sqrt(width))
        self.b_in = nn.Parameter(torch.zeros(experts, 1, inner))
        self.w_out = nn.Parameter(torch.randn(experts, inner, width) / math.sqrt(inner))
        self.b_out = nn.Parameter(torch.zeros(experts, 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [experts, rows, width] -> the same shape: each expert of its rows."""
        return torch.bmm(F.gelu(torch.bmm(x, self.w_in) + self.b_in), self.w_out) + self.b_out


class MixtureOfExperts(nn.Module):
    """Each row is given to the `top_k` experts that the router scores highest, and gets the sum of their results,
    weighted by the router's softmax over those chosen.

    Args:
        router: a Linear [width -> experts].
        experts: a module [experts, rows, width] -> the same, all of whose parameters have the experts as their first
            axis (`FeedForwardExperts`).
        top_k: how many experts a row is given to.
        capacity: at most this many times the mean number of rows is what an expert takes from a rank; rows beyond are
            dropped, the last first. None: as many as there can be, and none is dropped.
    """

    ranks = GroupRanks("", 1, 0)  # those that have the experts; parallelize() sets it
    divided = False  # whether each of them has rows of its own

    def __init__(self, router: nn.Module, experts: nn.Module, top_k: int = 2, capacity: float | None = None) -> None:
        super().__init__()
        self.router, self.experts = router, experts
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [.., width] -> the same shape."""
        rows = x.reshape(-1, x.shape[-1])
        if self.ranks.world == 1:
            return self._of_rows(rows, None).view(x.shape)
        if self.divided:
            return self._of_rows(rows, self.ranks).view(x.shape)
        own = split_along(rows, self.ranks, 0)
        return gathered_along(self._of_rows(own, self.ranks), self.ranks, 0, alike=True).view(x.shape)

    def _of_rows(self, rows: torch.Tensor, ranks: GroupRanks | None) -> torch.Tensor:
        scores = self.router(rows)
        count = scores.shape[-1]
        chosen, experts = scores.topk(self.top_k, dim=-1)
        weights = chosen.softmax(-1)
        limit = rows.shape[0]
        if self.capacity is not None:
            limit = min(limit, math.ceil(self.capacity * self.top_k * rows.shape[0] / count))
        place, fits = _places(experts.flatten(), count, limit)
        where = torch.where(
            fits, experts.flatten() * limit + place, count * limit
        )  # the last row takes what is dropped
        spread = rows.repeat_interleave(self.top_k, 0)
        sent = rows.new_zeros(count * limit + 1, rows.shape[-1]).index_copy(0, where, spread)[:-1]
        back = self._computed(sent.view(count, limit, -1), ranks).reshape(count * limit, -1)
        found = torch.cat([back, back.new_zeros(1, back.shape[-1])]).index_select(0, where)
        return (found.view(-1, self.top_k, found.shape[-1]) * weights.unsqueeze(-1)).sum(1)

    def _computed(self, sent: torch.Tensor, ranks: GroupRanks | None) -> torch.Tensor:
        """sent [experts, limit, width] -> the experts' results in the same places."""
        if ranks is None:
            return self.experts(sent)
        world, (count, limit, width) = ranks.world, sent.shape
        own = count // world
        come = exchanged(sent, ranks).view(world, own, limit, width)
        made = self.experts(come.transpose(0, 1).reshape(own, world * limit, width))
        gone = made.view(own, world, limit, width).transpose(0, 1).reshape(count, limit, width)
        return exchanged(gone, ranks)


def _places(experts: torch.Tensor, count: int, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each choice [n] the place that it has among those of its expert, and whether that is below the limit."""
    one_hot = (experts.unsqueeze(1) == torch.arange(count, device=experts.device)).to(torch.int64)
    place = ((one_hot.cumsum(0) - 1) * one_hot).sum(1)
    return place, place < limit
