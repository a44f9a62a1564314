"""One safetensors file of whole weights from a checkpoint, one tensor in memory at a time, without a process group.

Not here: loading into a model (`safetensors.torch.load_file`).
"""

from __future__ import annotations

import json
import os
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
    names = sorted(name for name in manifest["tensors"] if name.startswith("model."))
    header: dict[str, Any] = {}
    at = 0
    for name in names:
        own, dtype = name.removeprefix("model."), _dtype(manifest, name, masters)
        size = manifest["tensors"][name]["numel"] * dtype.itemsize
        header[own] = {"dtype": _TYPES[dtype], "shape": manifest["shapes"][name], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = file.with_name(file.name + ".partial")
    with open(partial, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            dtype = _dtype(manifest, name, masters)
            for part in manifest["tensors"][name]["parts"]:
                value = chunk_tensor(path, manifest, name, part["start"]).to(dtype)
                if value.numel():
                    stream.write(value.view(torch.uint8).numpy().data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, file)
    return [name.removeprefix("model.") for name in names]


def _dtype(manifest: dict[str, Any], name: str, masters: bool) -> torch.dtype:
    own = manifest["dtypes"].get(name.removeprefix("model."))
    return getattr(torch, own if own is not None and not masters else manifest["tensors"][name]["dtype"])
