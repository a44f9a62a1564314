"""One safetensors file of whole weights from a checkpoint, one tensor in memory at a time, without a process group.

Not here: loading into a model (`safetensors.torch.load_file`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ortmodule.distributed.checkpoint.storage import chunk_tensor, read_manifest

__all__ = ["consolidate"]

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def consolidate(path: str | os.PathLike[str], file: str | os.PathLike[str], *, masters: bool = False) -> list[str]:
    """Writes the parameters and buffers of a checkpoint into one file, whole or not at all.

    Args:
        path: the checkpoint's folder.
        file: to be written.
        masters: parameters in the optimizer's type; else in the model's.

    Returns:
        The names in it.

    Raises:
        CheckpointError: a bit of the checkpoint is not as it was written.
    """
    path, file = Path(path), Path(file)
    manifest = read_manifest(path)
    entries: dict[str, list[str]] = {}
    for name in manifest["tensors"]:
        if name.startswith("model."):
            entries.setdefault(name.removeprefix("model.").split("[")[0], []).append(name)
    names = sorted(entries)
    header: dict[str, Any] = {}
    at = 0
    for name in names:
        dtype, shape = _dtype(manifest, entries[name][0], masters), _shape(manifest, name, entries[name])
        size = math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = file.with_name(file.name + ".partial")
    with open(partial, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            dtype = _dtype(manifest, entries[name][0], masters)
            for value in _values(path, manifest, name, entries[name]):
                if value.numel():
                    stream.write(value.to(dtype).view(torch.uint8).numpy().data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, file)
    return names


def _shape(manifest: dict[str, Any], name: str, entries: list[str]) -> list[int]:
    """Of the whole tensor."""
    shape = list(manifest["shapes"][entries[0]])
    if (how := manifest.get("divided", {}).get(name)) is not None:
        shape[how["dim"]] = how["size"]
    return shape


def _values(path: Path, manifest: dict[str, Any], name: str, entries: list[str]) -> Iterator[torch.Tensor]:
    """Its elements in their order, in pieces."""
    if name not in manifest.get("divided", {}):
        for part in manifest["tensors"][entries[0]]["parts"]:
            yield chunk_tensor(path, manifest, entries[0], part["start"])
        return
    from ortmodule.distributed.parallel.division import Division

    wholes = []
    for entry in sorted(entries, key=lambda entry: int(entry.split("[")[1].split("/")[0])):
        pieces = [chunk_tensor(path, manifest, entry, p["start"]) for p in manifest["tensors"][entry]["parts"]]
        wholes.append(torch.cat(pieces).view(manifest["shapes"][entry]))
    yield Division(**manifest["divided"][name]).whole(wholes).reshape(-1).contiguous()


def _dtype(manifest: dict[str, Any], name: str, masters: bool) -> torch.dtype:
    own = manifest["dtypes"].get(name.removeprefix("model."))
    return getattr(torch, own if own is not None and not masters else manifest["tensors"][name]["dtype"])
