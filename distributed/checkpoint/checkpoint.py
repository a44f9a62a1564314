"""Checkpoints of sharded training: each rank writes and reads its own part, at any world size and stage.

Not here: what is in them (entries.py), files and checksums (storage.py), one file of whole weights (consolidate.py).
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from ortmodule.distributed.checkpoint import entries, plain, storage
from ortmodule.distributed.checkpoint.divided import SavedParts, whole_name
from ortmodule.distributed.checkpoint.entries import Entry
from ortmodule.distributed.errors import CheckpointError
from ortmodule.distributed.optimizer import ZeroOptimizer

__all__ = ["Loaded", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a checkpoint says besides: the step, and what was given as `data` when it was saved."""

    step: int | None
    data: Any


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: ZeroOptimizer,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    step: int | None = None,
    data: Any = None,
    asynchronous: bool = False,
) -> Future[None] | None:
    """Writes a folder, on all ranks; it is there whole or not at all.

    Args:
        path: the folder, on a file system that all ranks see; it must not exist.
        model, optimizer: what `zero` returned.
        scheduler, scaler: whose state_dict() is saved (numbers, texts, lists, dicts and tensors).
        step, data: what `load_checkpoint` will give back; `data` is the position in the data, for one.
        asynchronous: values are copied to host memory, and written while training goes on.

    Returns:
        For an asynchronous one what to wait for (`.result()`), else None.

    Raises:
        CheckpointError: it cannot be written, or ranks were given different folders; there is none then.
    """
    optimizer.wait()
    _check_path(path)
    parts, shapes = entries.entries_to_save(model, optimizer)
    manifest = _manifest(model, optimizer, shapes, scheduler, scaler, {"step": step, "data": data})
    writer = storage.Writer(path, dist.get_rank(), manifest)
    group = _group()
    if asynchronous:
        copies = {
            name: dataclasses.replace(e, part=None if e.part is None else e.part.detach().to("cpu", copy=True))
            for name, e in parts.items()
        }
        return _in_background(lambda: _save(copies, writer, group))
    _save(parts, writer, group)
    return None


def _manifest(
    model: nn.Module, optimizer: ZeroOptimizer, shapes: dict[str, list[int]], scheduler: Any, scaler: Any, own: Any
) -> dict[str, Any]:
    """What the manifest holds besides where tensors lie; on all ranks, as each knows its pieces alone."""
    mine = {
        "scalars": entries.scalar_states(optimizer),
        "random": plain.random_state(),
        "shapes": shapes,
        "dtypes": {entries.entry_name(optimizer, name): str(p.dtype)[6:] for name, p in model.named_parameters()},
        "divided": entries.divided(optimizer),
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    rest = {
        "scalars": {name: state for one in everyone for name, state in one["scalars"].items()},
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "scheduler": scheduler.state_dict() if scheduler is not None else None,
        "scaler": scaler.state_dict() if scaler is not None else None,
        "data": own["data"],
        "steps": [optimizer.steps, optimizer.skipped_steps],
    }
    return {
        "world": dist.get_world_size(),
        "stage": int(optimizer.stage),
        "step": own["step"],
        "random": [one["random"] for one in everyone],
        "rest": plain.to_plain(rest, "the state"),
        **{kind: {n: v for one in everyone for n, v in one[kind].items()} for kind in ("dtypes", "shapes", "divided")},
    }


def load_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: ZeroOptimizer,
    *,
    scheduler: Any = None,
    scaler: Any = None,
) -> Loaded:
    """Reads what `save_checkpoint` wrote, on all ranks: at any world size and stage of `zero`, in any number of stages
    of a pipeline, divided by `parallelize` among any number of ranks or not. Each reads what its pieces need.

    Random generators become those of the same rank; ranks that there were not before keep theirs. (With as many ranks
    as before a run goes on bit by bit.)

    Raises:
        CheckpointError: a bit of it is not as it was written (the text names the tensor), or it is of another model, or
            holds no scheduler or scaler where one is given, or ranks were given different folders. Nothing has been
            loaded then but where a bit is wrong.
        TypeError: the optimizer is not one that `zero` returned.
    """
    if not isinstance(optimizer, ZeroOptimizer):
        raise TypeError(f"load_checkpoint needs the optimizer that zero() returned, got {type(optimizer).__name__}")
    optimizer.wait()
    _check_path(path)
    reader = storage.Reader(path)
    manifest = reader.manifest
    rest = plain.from_plain(manifest["rest"])
    given = {"scheduler": scheduler, "scaler": scaler}
    for name, one in given.items():
        if one is not None and rest[name] is None:
            raise CheckpointError(f"the checkpoint holds no {name}")
    _check_groups(rest["groups"], optimizer)
    dtypes = {whole_name(name): getattr(torch, facts["dtype"]) for name, facts in manifest["tensors"].items()}
    parts, states = entries.entries_to_load(model, optimizer, dtypes, rest["scalars"])
    saved = _saved(Path(path), manifest)
    _check_names(parts, saved)
    alike = {name: entry for name, entry in parts.items() if saved[whole_name(name)].is_like(entry)}
    with torch.no_grad():
        _translated(
            lambda: dcp.load(alike, storage_reader=reader, planner=entries.LoadPlanner(), process_group=_group())
        )
    _together(lambda: [saved[whole_name(n)].load(e) for n, e in parts.items() if n not in alike and e.part is not None])
    optimizer.state.clear()
    for piece, state in states.items():
        optimizer.state[piece] = state
    for group, saved in zip(optimizer.param_groups, rest["groups"], strict=True):
        group.update(saved)
    optimizer.steps, optimizer.skipped_steps = rest["steps"]
    optimizer.zero_grad()
    optimizer.publish()
    for name, one in given.items():
        if one is not None:
            one.load_state_dict(rest[name])
    if dist.get_rank() < len(manifest["random"]):
        plain.restore_random_state(manifest["random"][dist.get_rank()])
    return Loaded(manifest["step"], rest["data"])


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """The newest whole checkpoint in a folder by its step, or None."""
    found = []
    for path in Path(folder).glob(f"*/{storage.MANIFEST}"):
        if not path.parent.name.endswith(storage.PARTIAL):
            found.append((storage.read_manifest(path.parent)["step"] or 0, path.parent))
    return max(found)[1] if found else None


def _check_path(path: str | os.PathLike[str]) -> None:
    """Ranks write parts of one folder: the same name everywhere, and not each its own."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, os.path.abspath(path))
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise CheckpointError(
                f"ranks have different folders for a checkpoint: rank {rank} {other}, rank 0 {everyone[0]}; broadcast "
                "the name where it is made of the time or at random"
            )


def _check_groups(saved: list[dict[str, Any]], optimizer: ZeroOptimizer) -> None:
    if len(saved) != len(optimizer.param_groups):
        raise CheckpointError(
            f"the checkpoint has {len(saved)} groups of parameters, the optimizer {len(optimizer.param_groups)}"
        )


def _saved(path: Path, manifest: dict[str, Any]) -> dict[str, SavedParts]:
    """What there is of each tensor, by its name without the label of a part."""
    entries: dict[str, list[str]] = {}
    for name in manifest["tensors"]:
        entries.setdefault(whole_name(name), []).append(name)
    return {name: SavedParts(path, manifest, name, some) for name, some in entries.items()}


def _check_names(parts: dict[str, Entry], saved: dict[str, SavedParts]) -> None:
    known = {whole_name(name) for name in parts}
    problem = None
    for name, entry in parts.items():
        there = saved.get(whole_name(name))
        if there is None:
            problem = f"the checkpoint does not have {whole_name(name)}"
        elif there.shape != entry.whole_shape:
            problem = f"{whole_name(name)} is of shape {there.shape} in the checkpoint and {entry.whole_shape} here"
        elif missing := there.missing():
            problem = f"the checkpoint does not have the parts of {whole_name(name)} of the tensor ranks {missing}"
        if problem is not None:
            break
    everyone: list[Any] = [None] * dist.get_world_size()  # other ranks may have other parts of the model
    dist.all_gather_object(everyone, (problem, sorted(known)))
    if (found := next((said for said, _ in everyone if said is not None), None)) is not None:
        raise CheckpointError(found)
    known = {name for _, names in everyone for name in names}
    extra = [n for n in saved if n.startswith("model.") and n not in known]
    if extra:
        raise CheckpointError(f"the checkpoint has {extra[0]}, which the model does not have")


def _together(function: Callable[[], Any]) -> None:
    """Runs it; all ranks raise where one does."""
    said = None
    try:
        function()
    except CheckpointError as error:
        said = str(error)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, said)
    for rank, one in enumerate(everyone):
        if one is not None:
            raise CheckpointError(f"{one} (rank {rank})")


def _save(parts: dict[str, Entry], writer: storage.Writer, group: dist.ProcessGroup) -> None:
    _translated(lambda: dcp.save(parts, storage_writer=writer, planner=entries.SavePlanner(), process_group=group))


def _translated(function: Callable[[], Any]) -> None:
    """Runs it; torch's CheckpointException, which is no Exception, becomes ours with the first rank's reason."""
    try:
        function()
    except dcp.api.CheckpointException as error:
        rank, (reason, _) = min(error.failures.items())
        raise CheckpointError(f"{reason} (rank {rank})") from error


_GROUPS: dict[int, dist.ProcessGroup] = {}


def _group() -> dist.ProcessGroup:
    """A group of all ranks for checkpoints alone: one in the background must not meet training's collectives."""
    world = id(dist.group.WORLD)
    if world not in _GROUPS:
        _GROUPS.clear()
        _GROUPS[world] = dist.new_group(backend="gloo")
    return _GROUPS[world]


def _in_background(function: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="ortmodule checkpoint").start()
    return done
