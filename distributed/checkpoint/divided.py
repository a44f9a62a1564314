"""Parts of tensors that a checkpoint has divided otherwise: among other ranks, along another axis, or not at all.

Element by element: where an element of this rank's part lies in the whole tensor, and in which saved part that is. Of
the file only parts are read that have such an element, one at a time.
Not here: parts that are divided as they were (torch.distributed.checkpoint reads those).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ortmodule.distributed.checkpoint.storage import chunk_tensor

if TYPE_CHECKING:
    from ortmodule.distributed.checkpoint.entries import Entry

__all__ = ["Axis", "SavedParts", "whole_name"]

_LABEL = re.compile(r"\[(\d+)/(\d+)\]")
_BLOCK = 1 << 20  # elements that are placed at once


def whole_name(name: str) -> str:
    """An entry's name without the label of a part: `model.fc.weight` of `model.fc.weight[0/2]`."""
    return _LABEL.sub("", name)


@dataclasses.dataclass(frozen=True)
class Axis:
    """How an axis is divided among ranks.

    Attributes:
        dim: which axis.
        size: how long it is in all.
        parts: of how many blocks it consists, each of which is divided.
        world: among how many ranks.
    """

    dim: int
    size: int
    parts: int = 1
    world: int = 1

    @property
    def length(self) -> int:
        """What a rank has of it, with what it is filled up by."""
        return self.parts * self._each

    @property
    def _each(self) -> int:
        """What a rank has of a block."""
        return -(-self.size // (self.parts * self.world))

    def place(self, own: torch.Tensor, rank: int) -> torch.Tensor:
        """Where positions in a rank's part lie in the whole."""
        return own // self._each * (self._each * self.world) + rank * self._each + own % self._each

    def owner(self, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ranks that have positions of the whole, and where."""
        block, within = whole // (self._each * self.world), whole % (self._each * self.world)
        return within // self._each, block * self._each + within % self._each


class SavedParts:
    """Args:
    path, manifest: of a checkpoint.
    name: of a tensor, without the label of a part.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], name: str, entries: Sequence[str]) -> None:
        self._path, self._manifest = path, dict(manifest)
        self._entries = {_rank_of(entry): entry for entry in entries}
        how = manifest.get("divided", {}).get(_parameter(name))
        shape = list(manifest["shapes"][entries[0]])
        self._axis = None
        if how is not None and (found := _LABEL.search(entries[0])) is not None:
            self._axis = Axis(how["dim"], how["size"], how["parts"], int(found[2]))
            shape[how["dim"]] = how["size"]
        self.shape = shape

    def is_like(self, entry: Entry) -> bool:
        """Whether it is divided as `entry` is."""
        return self._axis == entry.axis and (entry.axis is None or entry.rank in self._entries)

    def missing(self) -> list[int]:
        """The ranks whose parts are not there."""
        world = 1 if self._axis is None else self._axis.world
        return [rank for rank in range(world) if rank not in self._entries]

    @torch.no_grad()
    def load(self, entry: Entry) -> None:
        """Fills in `entry.part`; what no rank had, because it fills an axis up, is zero.

        Raises:
            CheckpointError: a bit is not as it was written.
        """
        assert entry.part is not None
        into = entry.part.detach()
        into.zero_()
        for rank, name in sorted(self._entries.items()):
            for saved in self._manifest["tensors"][name]["parts"]:
                chunk = None
                for begin, owner, at in self._blocks(entry):
                    wanted = (owner == rank) & (at >= saved["start"]) & (at < saved["start"] + saved["numel"])
                    if not bool(wanted.any()):
                        continue
                    if chunk is None:
                        chunk = chunk_tensor(self._path, self._manifest, name, saved["start"])
                    found = chunk[at[wanted] - saved["start"]].to(device=into.device, dtype=into.dtype)
                    into[begin : begin + len(at)][wanted.to(into.device)] = found

    def _blocks(self, entry: Entry) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Of runs of the part's elements: where they begin, and for each element the saved rank (-1: none) and its
        place in that one's part.
        """
        assert entry.part is not None
        whole, count = self.shape, entry.part.numel()
        for begin in range(0, count, _BLOCK):
            own = torch.arange(begin, min(begin + _BLOCK, count)) + entry.start
            none = torch.zeros(len(own), dtype=torch.bool)
            if (axis := entry.axis) is not None:
                inner = math.prod(whole[axis.dim + 1 :])
                outer, rest = own // (axis.length * inner), own % (axis.length * inner)
                place = axis.place(rest // inner, entry.rank)
                none = place >= axis.size
                own = (outer * axis.size + place.clamp(max=axis.size - 1)) * inner + rest % inner
            owner = torch.zeros_like(own)
            if (axis := self._axis) is not None:
                inner = math.prod(whole[axis.dim + 1 :])
                outer, rest = own // (axis.size * inner), own % (axis.size * inner)
                owner, place = axis.owner(rest // inner)
                own = (outer * axis.length + place) * inner + rest % inner
            yield begin, owner.masked_fill(none, -1), own


def _rank_of(entry: str) -> int:
    found = _LABEL.search(entry)
    return int(found[1]) if found is not None else 0


def _parameter(name: str) -> str:
    """The parameter that an entry is of: without `model.`, or without `optimizer.` and the name of a state."""
    kind, _, rest = name.partition(".")
    return rest if kind == "model" else rest.rpartition(".")[0]
