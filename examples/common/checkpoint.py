"""Checkpoints that survive a crash at any moment: written to a temporary file, synced, renamed.

What: finding, writing, reading and thinning out the files `checkpoints/step-000100.pt` of a run's folder.
Not here: what is in them (training.py).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from common.arguments import RUNS, fail

_NAME = re.compile(r"step-(\d+)\.pt$")


def _in_folder(folder: Path) -> list[Path]:
    """Checkpoints of a run's folder (or of its checkpoints/), oldest first."""
    inner = folder / "checkpoints"
    files = [path for path in (inner if inner.is_dir() else folder).glob("step-*.pt") if _NAME.search(path.name)]
    return sorted(files, key=lambda path: int(_NAME.search(path.name)[1]))  # type: ignore[index]


def exists_in(folder: Path) -> bool:
    return folder.is_dir() and bool(_in_folder(folder))


def find(path: str, name: str) -> Path:
    """The checkpoint that `--resume PATH` means; an empty PATH is the newest run of this example."""
    if not path:
        runs = [folder for folder in RUNS.glob(f"{name}-*") if exists_in(folder)]
        if not runs:
            fail(f"--resume found no run with a checkpoint under {RUNS}/{name}-*")
        return _in_folder(max(runs, key=lambda folder: folder.stat().st_mtime))[-1]
    named = Path(path)
    if named.is_file():
        return named
    if not named.is_dir():
        fail(f"--resume {path}: no such file or folder")
    files = _in_folder(named)
    if not files:
        fail(f"--resume {path}: the folder holds no checkpoint (step-*.pt)")
    return files[-1]


def read(path: Path) -> dict[str, Any]:
    """Reads tensors and plain data only; a checkpoint cannot run code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes provoke
        fail(f"{path} is damaged or no checkpoint ({type(error).__name__})")
    if not isinstance(state, dict) or "engines" not in state:
        fail(f"{path} is no checkpoint of these examples")
    return state


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes step-<step>.pt and removes all but the `keep` newest; returns the file's path."""
    target = folder / "checkpoints" / f"step-{step:06d}.pt"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    with open(temporary, "wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, target)
    _sync_folder(target.parent)
    for stale in _in_folder(folder)[:-keep]:
        stale.unlink()
    return target
