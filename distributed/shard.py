"""This rank's part of a bucket: what the optimizer reads and writes.

The optimizer's parameters are pieces, views into the shard's memory: one per trained parameter that reaches into it. So
a parameter that has got no gradient in a step is left alone, its state and its weight decay too, as in one process.
Not here: the bucket that it is a part of (bucket.py, gathered_bucket.py).
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import nn

from ortmodule.distributed.layout import BucketLayout

__all__ = ["Shard"]


class Shard:
    """Args:
    layout: of the bucket.
    rank: whose part.
    values: [layout.shard_numel], in the dtype and on the device of the optimizer; shared, not copied.

    Attributes:
        places: where each piece lies.
        pieces: leaves without history, parallel to `places`.
    """

    def __init__(self, layout: BucketLayout, rank: int, values: torch.Tensor) -> None:
        self.layout, self.values = layout, values
        self.places = layout.pieces(rank)
        self.pieces = [nn.Parameter(values[p.at : p.at + p.length]) for p in self.places]
        self.updated = False  # whether any rank has a gradient of the bucket
        self._gradient: torch.Tensor | None = None

    @property
    def has_gradient(self) -> bool:
        return any(piece.grad is not None for piece in self.pieces)

    def gradient_bytes(self) -> int:
        return self._gradient.nbytes if self._gradient is not None and self.has_gradient else 0

    def add(self, gradient: torch.Tensor, used: Set[int]) -> None:
        """Adds a gradient [layout.shard_numel] to those of the pieces; `used`: which slots have got one on any rank."""
        if self.has_gradient and self._gradient is not None:
            if self._gradient.data_ptr() != gradient.data_ptr():
                self._gradient.add_(gradient)
        else:
            self._gradient = gradient.to(device=self.values.device, dtype=self.values.dtype)
        self.updated = self.updated or bool(used)
        for place, piece in zip(self.places, self.pieces, strict=True):
            if piece.grad is None and place.slot in used:
                piece.grad = self._gradient[place.at : place.at + place.length]

    def clear(self, set_to_none: bool = True) -> None:
        if not set_to_none and self.has_gradient and self._gradient is not None:
            self._gradient.zero_()
            return
        self._gradient, self.updated = None, False
        for piece in self.pieces:
            piece.grad = None

    def spoil(self) -> None:
        """Makes the gradient one that anybody who looks at it finds not to be finite."""
        for piece in self.pieces:
            if piece.grad is not None:
                piece.grad.view(-1)[:1].fill_(float("nan"))
