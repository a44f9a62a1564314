"""Files of a checkpoint: safetensors with the parts of each rank, and one manifest that says what lies where.

    step-000100/manifest.json            what is in it, a checksum for each part, and one of itself
    step-000100/rank-00000.safetensors   the parts that rank 0 has written

Written into `step-000100.partial`, synced, and renamed when all ranks are done: a folder without that suffix is whole.
Nothing is pickled. These are torch.distributed.checkpoint's StorageWriter and StorageReader.
Not here: what is in it (entries.py, checkpoint.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ortmodule.distributed.errors import CheckpointError

__all__ = ["Reader", "Writer", "chunk_tensor", "read_manifest", "verify"]

MANIFEST, PARTIAL, FORMAT = "manifest.json", ".partial", 1


class Writer(StorageWriter):
    """Args:
    path: the folder to be; it must not exist.
    rank: of this process among those that write.
    manifest: what the manifest holds besides.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int, manifest: dict[str, Any]) -> None:
        self._path, self._rank, self._manifest = Path(path), rank, manifest
        self._partial = self._path.with_name(self._path.name + PARTIAL)

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str | os.PathLike)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator and self._path.exists():
            raise CheckpointError(f"{self._path} exists already: a checkpoint is never written over another")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, before anybody writes."""
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        tensors, indices = {}, {}
        for item in plan.items:
            start = item.index.offset[0] if item.index.offset else 0
            name = f"{item.index.fqn}@{start}"
            value = planner.resolve_data(item)
            assert isinstance(value, torch.Tensor)
            tensors[name], indices[name] = value.detach().cpu().contiguous(), item.index
        done: Future[list[WriteResult]] = Future()
        results = []
        if tensors:
            file = self._partial / f"rank-{self._rank:05d}.safetensors"
            save_file({name: t.clone() for name, t in tensors.items()}, file)
            head, places = _header(file)
            _sync(file)
            head_crc = zlib.crc32(_read(file, 0, head))
            for name, tensor in tensors.items():
                begin, end = places[name]
                facts = {
                    "start": int(name.rpartition("@")[2]),
                    "numel": tensor.numel(),
                    "file": file.name,
                    "offset": head + begin,
                    "bytes": end - begin,
                    "crc32": zlib.crc32(_bytes(tensor)),
                    "head": [head, head_crc],
                }
                results.append(WriteResult(indices[name], end - begin, facts))
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all ranks have written."""
        tensors: dict[str, Any] = {}
        for result in (one for some in results for one in some):
            about = metadata.state_dict_metadata[result.index.fqn]
            assert isinstance(about, TensorStorageMetadata)
            facts = {"dtype": str(about.properties.dtype)[6:], "numel": about.size.numel(), "parts": []}
            tensors.setdefault(result.index.fqn, facts)["parts"].append(result.storage_data)
        for facts in tensors.values():
            facts["parts"].sort(key=lambda part: part["start"])
        body = json.dumps({"format": FORMAT, **self._manifest, "tensors": tensors}, sort_keys=True)
        with open(self._partial / MANIFEST, "w", encoding="utf-8") as stream:
            stream.write(f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}\n")
            stream.flush()
            os.fsync(stream.fileno())
        _sync(self._partial)
        os.rename(self._partial, self._path)
        _sync(self._path.parent)


class Reader(StorageReader):
    """Args:
    path: a checkpoint's folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.manifest = read_manifest(self._path)

    def reset(self, checkpoint_id: Any = None) -> None:
        del checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str | os.PathLike)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        entries: dict[str, Any] = {}
        for name, facts in self.manifest["tensors"].items():
            chunks = [
                ChunkStorageMetadata(torch.Size([part["start"]]), torch.Size([part["numel"]]))
                for part in facts["parts"]
            ]
            properties = TensorProperties(dtype=getattr(torch, facts["dtype"]))
            entries[name] = TensorStorageMetadata(properties, torch.Size([facts["numel"]]), chunks)
        return Metadata(entries)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        del metadata, is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_part: dict[MetadataIndex, list[Any]] = {}
        for item in plan.items:
            by_part.setdefault(item.storage_index, []).append(item)
        for index, items in by_part.items():
            whole = chunk_tensor(self._path, self.manifest, index.fqn, index.offset[0] if index.offset else 0)
            for item in items:
                source = whole[item.storage_offsets[0] : item.storage_offsets[0] + item.lengths[0]]
                target = planner.resolve_tensor(item).detach()
                target.copy_(source)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def verify(path: Path) -> int:
    """Reads all of a checkpoint; how many tensors are in it. Raises CheckpointError where a bit is not as written."""
    manifest = read_manifest(path)
    for name, facts in manifest["tensors"].items():
        for part in facts["parts"]:
            chunk_tensor(path, manifest, name, part["start"])
    return len(manifest["tensors"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Raises CheckpointError where there is none, or one that is not as it was written."""
    try:
        text = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from error
    digest, _, body = text.partition(b"\n")
    if hashlib.sha256(body.rstrip(b"\n")).hexdigest().encode() != digest or not text.endswith(b"}\n"):
        raise CheckpointError(f"{path / MANIFEST} is damaged: its checksum does not fit")
    manifest = json.loads(body)
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{path} is of format {manifest['format']}, this version reads {FORMAT}")
    return manifest


def chunk_tensor(path: Path, manifest: dict[str, Any], name: str, start: int) -> torch.Tensor:
    """The part of an entry that begins at `start`, its checksum verified."""
    facts = manifest["tensors"][name]
    part = next(part for part in facts["parts"] if part["start"] == start)
    file = path / part["file"]
    if file.parent != path:
        raise CheckpointError(f"{name} lies outside of the checkpoint: {part['file']}")
    try:
        head = _read(file, 0, part["head"][0])
        data = _read(file, part["offset"], part["bytes"])
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read from {file.name}: {error.strerror}") from error
    if zlib.crc32(head) != part["head"][1]:
        raise CheckpointError(f"{file} is damaged where it names its tensors, {name} among them")
    if len(data) != part["bytes"] or zlib.crc32(data) != part["crc32"]:
        raise CheckpointError(f"{name} is damaged: its checksum does not fit (in {file})")
    dtype = getattr(torch, facts["dtype"])
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _read(file: Path, offset: int, length: int) -> bytearray:
    with open(file, "rb") as stream:
        stream.seek(offset)
        return bytearray(stream.read(length))


def _bytes(tensor: torch.Tensor) -> bytes | memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""


def _header(file: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where the data of a safetensors file begin, and the places in them of each tensor."""
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    return 8 + length, {name: tuple(facts["data_offsets"]) for name, facts in header.items() if name != "__metadata__"}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
