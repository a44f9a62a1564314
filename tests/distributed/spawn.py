"""Runs a function on several gloo ranks of this machine, and gives back what each returns.

Ranks are forked from one process that has imported what they need (multiprocessing's forkserver): a rank costs
milliseconds, where a fresh interpreter spends seconds of imports. A test module runs its cases on one group of ranks;
what they found is kept for all workers of pytest-xdist (`once`).
"""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import pickle
import socket
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from filelock import FileLock

__all__ = ["in_process", "on_ranks", "once"]

# What ranks import at the latest in their first step.
_IMPORTED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "pytest",
    "ortmodule",
    "ortmodule.distributed",
    "safetensors.torch",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
]


def on_ranks(
    world: int, function: Callable[..., Any], *args: Any, seconds: float = 60.0, end: bool = True
) -> list[Any]:
    """Calls function(rank, *args) on `world` ranks, in processes of their own; their results, by rank. Without `end`
    ranks do not wait for one another at the end.
    """
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        _start(world, _rank, (world, port, folder, seconds, end, function, args))
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(world)]


def in_process(function: Callable[..., Any], *args: Any) -> Any:
    """Calls function(*args) in a process of its own, without a process group; what it returns."""
    with tempfile.TemporaryDirectory() as folder:
        _start(1, _alone, (folder, function, args))
        return pickle.loads(Path(folder, "0").read_bytes())


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What make() gives, called once for all workers that run this suite."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the workers together
    file = folder / f"{name}.pickle"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(make()))
        return pickle.loads(file.read_bytes())


def of_cases(
    factory: pytest.TempPathFactory, name: str, run: Callable[..., list[Any]], by_world: Mapping[int, Mapping[str, Any]]
) -> dict[str, list[Any]]:
    """What `run(rank, cases)` gives for each case, a list by rank; made once. Cases stand under the ranks they need."""

    def make() -> dict[str, list[Any]]:
        out = {}
        for world, cases in by_world.items():
            by_rank = on_ranks(world, run, list(cases.values()))
            out.update({case: [one[i] for one in by_rank] for i, case in enumerate(cases)})
        return out

    return once(factory, name, make)


def of_checks(rank: int, checks: Sequence[Callable[..., None]], *args: Any) -> list[str]:
    """What each `check(rank, *args)` found wrong on this rank, in words; "" where it found nothing."""
    out = []
    for check in checks:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(rank, *args)
            out.append("")
        except Exception as error:
            out.append(f"{type(error).__name__}: {error}")
        dist.barrier()
    return out


def _start(count: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    multiprocessing.set_forkserver_preload(_IMPORTED)
    mp.start_processes(work, args=args, nprocs=count, start_method="forkserver")


def _rank(
    rank: int, world: int, port: int, folder: str, seconds: float, end: bool, function: Callable[..., Any], args: Any
) -> None:
    faulthandler.enable()  # a rank that crashes says where its threads were
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    try:
        result = function(rank, *args)
        Path(folder, str(rank)).write_bytes(pickle.dumps(result))
        if end:
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _alone(number: int, folder: str, function: Callable[..., Any], args: Any) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    Path(folder, str(number)).write_bytes(pickle.dumps(function(*args)))
