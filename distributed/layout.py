"""Where parameters lie in flat buckets, and which part of a bucket is whose. Pure arithmetic, in elements.

A bucket is the concatenation of its parameters, filled up to a multiple of the world's size; rank r's shard is the r-th
of `world` equal parts. A shard cuts parameters where it must: the part of one parameter in one shard is a piece.
Not here: memory (bucket.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

__all__ = ["BucketLayout", "Piece", "Slot", "pack"]


@dataclasses.dataclass(frozen=True)
class Slot:
    """A parameter in a bucket: its name, shape and first element there."""

    name: str
    shape: torch.Size
    start: int

    @property
    def numel(self) -> int:
        return self.shape.numel()


@dataclasses.dataclass(frozen=True)
class Piece:
    """The part of a parameter that lies in a shard.

    Attributes:
        slot: which of the bucket's parameters.
        start: its first element in that parameter, flattened.
        at: its first element in the shard.
        length: how many elements.
    """

    slot: int
    start: int
    at: int
    length: int


@dataclasses.dataclass(frozen=True)
class BucketLayout:
    """`slots` in order; `numel`: with what it is filled up by, a multiple of `world`."""

    slots: tuple[Slot, ...]
    numel: int
    world: int

    @property
    def used(self) -> int:
        """Elements that are some parameter's."""
        return self.slots[-1].start + self.slots[-1].numel

    @property
    def shard_numel(self) -> int:
        return self.numel // self.world

    def pieces(self, rank: int) -> list[Piece]:
        """Those of a rank's shard; parameters without elements have none."""
        first = rank * self.shard_numel
        last = first + self.shard_numel
        out = []
        for i, slot in enumerate(self.slots):
            start, stop = max(first, slot.start), min(last, slot.start + slot.numel)
            if start < stop:
                out.append(Piece(i, start - slot.start, start - first, stop - start))
        return out


def pack(
    names: Sequence[str], shapes: Sequence[torch.Size], limit: int, world: int
) -> list[tuple[list[int], BucketLayout]]:
    """Fills buckets of at most `limit` elements in the given order; a parameter that is larger has one for itself.

    Returns:
        For each bucket: the places of its parameters in the given lists, and its layout.
    """
    runs: list[list[int]] = []
    room = 0
    for i, shape in enumerate(shapes):
        if not runs or shape.numel() > room:
            runs.append([])
            room = limit
        runs[-1].append(i)
        room -= shape.numel()
    return [(run, _layout([names[i] for i in run], [shapes[i] for i in run], world)) for run in runs]


def _layout(names: Sequence[str], shapes: Sequence[torch.Size], world: int) -> BucketLayout:
    slots, start = [], 0
    for name, shape in zip(names, shapes, strict=True):
        slots.append(Slot(name, shape, start))
        start += shape.numel()
    padded = max(-(-start // world), 1) * world
    return BucketLayout(tuple(slots), padded, world)
