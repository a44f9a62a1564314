"""What a checkpoint holds of a sharded run: flat tensors by name, of which each rank has a part.

A parameter, and each of the optimizer's numbers per element, is one flat tensor of the parameter's length, whatever the
world size and stage: a rank reads what its pieces need. `Entry` says that to torch.distributed.checkpoint's planners.
Not here: files (storage.py).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from ortmodule.distributed.checkpoint.divided import Axis
from ortmodule.distributed.full_state import is_divided

if TYPE_CHECKING:
    from ortmodule.distributed.optimizer import ZeroOptimizer

__all__ = ["Entry", "LoadPlanner", "SavePlanner", "divided", "entries_to_load", "entries_to_save", "entry_name",
           "scalar_states"]  # fmt: skip


@dataclasses.dataclass
class Entry:
    """A flat tensor.

    Attributes:
        numel: its length.
        part: this rank's part of it [n], or None.
        start: where that begins.
        shape: what it is the flat form of.
        axis: of a parameter that is divided among the ranks of a parallelized model, of which this is the part of rank
            `rank`: how it is.
    """

    numel: int
    part: torch.Tensor | None
    start: int = 0
    shape: tuple[int, ...] = ()
    axis: Axis | None = None
    rank: int = 0

    @property
    def whole_shape(self) -> list[int]:
        """That of the tensor before it was divided."""
        axis = self.axis
        return [axis.size if axis is not None and i == axis.dim else n for i, n in enumerate(self.shape)]

    def size(self) -> torch.Size:
        return torch.Size([self.numel])

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        if self.part is None:
            return []
        return [ChunkStorageMetadata(torch.Size([self.start]), torch.Size([self.part.numel()]))]

    def __create_write_items__(self, name: str, value: Any) -> list[WriteItem]:
        del value  # this
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties.create_from_tensor(self.part), self.size()),  # type: ignore[arg-type]
            )
            for chunk in self.__create_chunk_list__()
        ]


class SavePlanner(DefaultSavePlanner):
    """torch's, over entries."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].part


class LoadPlanner(DefaultLoadPlanner):
    """torch's, over entries."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator
        self.original_state_dict, self.mappings = state_dict, {}

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].part


def entry_name(optimizer: ZeroOptimizer, name: str) -> str:
    """What a parameter is called in a checkpoint: of one that is divided among the ranks of a parallelized model, each
    part has a name of its own, such as `fc.weight[0/2]`.
    """
    parts = optimizer.ranks.parts
    return f"{name}[{parts.label}]" if parts is not None and name in parts.divided else name


def _entry(optimizer: ZeroOptimizer, name: str, shape: torch.Size, part: torch.Tensor | None, start: int = 0) -> Entry:
    """Of a parameter, or of what the optimizer keeps of it."""
    parts = optimizer.ranks.parts
    if parts is None or name not in parts.divided:
        return Entry(shape.numel(), part, start, tuple(shape))
    assert parts.label is not None
    how, (rank, world) = parts.divided[name], map(int, parts.label.split("/"))
    return Entry(shape.numel(), part, start, tuple(shape), Axis(how.dim, how.size, how.parts, world), rank)


def divided(optimizer: ZeroOptimizer) -> dict[str, Any]:
    """How the parameters that are divided among the ranks of a parallelized model are, by name."""
    parts = optimizer.ranks.parts
    return {} if parts is None else {name: dataclasses.asdict(how) for name, how in parts.divided.items()}


def _whole(model: nn.Module, optimizer: ZeroOptimizer) -> dict[str, tuple[str, torch.Tensor]]:
    """What every rank has whole: frozen parameters and the buffers that a state dict has, by entry with their names."""
    trained = {slot.name for bucket in optimizer.buckets for slot in bucket.layout.slots}
    frozen = {name: p for name, p in model.named_parameters() if name not in trained}
    out: dict[str, tuple[str, torch.Tensor]] = {
        f"model.{entry_name(optimizer, name)}": (name, p) for name, p in frozen.items()
    }
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                name = f"{prefix}.{key}" if prefix else key
                out[f"model.{name}"] = name, buffer
    return out


def entries_to_save(model: nn.Module, optimizer: ZeroOptimizer) -> tuple[dict[str, Entry], dict[str, list[int]]]:
    """Entries by name, and the shapes that they are the flat form of. Trained parameters have the optimizer's type."""
    entries, shapes = {}, {}
    for name, (own, tensor) in _whole(model, optimizer).items():
        entries[name] = _entry(optimizer, own, tensor.shape, tensor.detach().reshape(-1))
        shapes[name] = list(tensor.shape)
    for bucket in optimizer.buckets:
        shard = bucket.shard
        for slot in bucket.layout.slots:
            name = entry_name(optimizer, slot.name)
            entries[f"model.{name}"] = Entry(slot.numel, None)
            shapes[f"model.{name}"] = list(slot.shape)
        for place, piece in zip(shard.places, shard.pieces, strict=True):
            slot = bucket.layout.slots[place.slot]
            name = entry_name(optimizer, slot.name)
            entries[f"model.{name}"] = Entry(slot.numel, piece.detach(), place.start)
            for key, value in optimizer.state.get(piece, {}).items():
                if is_divided(value, piece):
                    entries[f"optimizer.{name}.{key}"] = Entry(slot.numel, value, place.start)
                    shapes[f"optimizer.{name}.{key}"] = list(slot.shape)
    return entries, shapes


def scalar_states(optimizer: ZeroOptimizer) -> dict[str, dict[str, Any]]:
    """What the optimizer keeps per parameter and not per element, for the parameters that this rank has pieces of."""
    out = {}
    for bucket in optimizer.buckets:
        for place, piece in zip(bucket.shard.places, bucket.shard.pieces, strict=True):
            state = optimizer.state.get(piece, {})
            if scalars := {k: v for k, v in state.items() if not is_divided(v, piece)}:
                out[bucket.layout.slots[place.slot].name] = scalars
    return out


def entries_to_load(
    model: nn.Module, optimizer: ZeroOptimizer, dtypes: dict[str, torch.dtype], scalars: dict[str, dict[str, Any]]
) -> tuple[dict[str, Entry], dict[nn.Parameter, dict[str, Any]]]:
    """Entries whose parts are where values belong, and the state of the optimizer that will be theirs.

    Args:
        dtypes: of the checkpoint's entries, by name without the label of a part.
        scalars: what `scalar_states` gave, of all parameters.
    """
    entries, states = {}, {}
    for name, (own, tensor) in _whole(model, optimizer).items():
        entries[name] = _entry(optimizer, own, tensor.shape, tensor.detach().view(-1))
    for bucket in optimizer.buckets:
        shard = bucket.shard
        for slot in bucket.layout.slots:
            entries[f"model.{entry_name(optimizer, slot.name)}"] = _entry(optimizer, slot.name, slot.shape, None)
        for place, piece in zip(shard.places, shard.pieces, strict=True):
            slot = bucket.layout.slots[place.slot]
            own = entry_name(optimizer, slot.name)
            entries[f"model.{own}"] = _entry(optimizer, slot.name, slot.shape, piece.detach(), place.start)
            prefix = f"optimizer.{slot.name}."
            keys = [name[len(prefix) :] for name in dtypes if name.startswith(prefix)]
            state: dict[str, Any] = {
                k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in scalars.get(slot.name, {}).items()
            }
            for key in keys:
                dtype = piece.dtype if dtypes[prefix + key].is_floating_point else dtypes[prefix + key]
                state[key] = torch.zeros_like(piece, dtype=dtype, requires_grad=False)
                entries[f"optimizer.{own}.{key}"] = _entry(optimizer, slot.name, slot.shape, state[key], place.start)
            if state:
                states[piece] = state
    return entries, states
