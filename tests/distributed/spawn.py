"""Runs a function on several gloo ranks of this machine, and gives back what each returns."""

from __future__ import annotations

import datetime
import os
import pickle
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


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
        mp.spawn(_work, args=(world, port, folder, seconds, end, function, args), nprocs=world)
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(world)]


def _work(
    rank: int, world: int, port: int, folder: str, seconds: float, end: bool, function: Callable[..., Any], args: Any
) -> None:
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
