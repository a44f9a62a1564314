"""Who am I in a distributed launch: what torchrun tells each process, checked.

What: rank, world size and local rank from the variables RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, which
torchrun sets and other launchers imitate. Logging asks `is_rank_zero` so that one process of a job speaks.
Why not torch.distributed: it answers only after a process group exists, and log lines come before.
Not here: process groups and collectives.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class LaunchEnvironment:
    """Place of this process in its job; a process that no launcher started is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def _read(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ValueError(f"{name} is {text!r}; a launcher sets it to a number of 0 or more")
    return value


def launch_environment(environ: Mapping[str, str] | None = None) -> LaunchEnvironment:
    """Reads the launcher's variables from `environ` (default: os.environ).

    RANK and WORLD_SIZE come together or not at all. LOCAL_RANK defaults to RANK modulo LOCAL_WORLD_SIZE, and
    LOCAL_WORLD_SIZE to WORLD_SIZE (one machine).

    Raises:
        ValueError: a variable is no number, one of the pair is missing, or a rank is outside its world.
    """
    environ = os.environ if environ is None else environ
    present = [name for name in ("RANK", "WORLD_SIZE") if name in environ]
    if not present:
        return LaunchEnvironment()
    if len(present) == 1:
        other = "WORLD_SIZE" if present == ["RANK"] else "RANK"
        raise ValueError(f"{present[0]} is set but {other} is not; start the job with torchrun, which sets both")
    rank, world = _read(environ, "RANK"), _read(environ, "WORLD_SIZE")
    if rank >= world:
        raise ValueError(f"RANK={rank} does not lie in a world of WORLD_SIZE={world}")
    local_world = _read(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world
    if not 1 <= local_world <= world:
        raise ValueError(f"LOCAL_WORLD_SIZE={local_world} is not between 1 and WORLD_SIZE={world}")
    local = _read(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else rank % local_world
    if local >= local_world:
        raise ValueError(f"LOCAL_RANK={local} does not lie in a local world of LOCAL_WORLD_SIZE={local_world}")
    return LaunchEnvironment(rank, world, local, local_world)


def is_rank_zero(environ: Mapping[str, str] | None = None) -> bool:
    """True for the one process of a job that should log; with unreadable variables too, as a log line must not fail."""
    try:
        return launch_environment(environ).rank == 0
    except ValueError:
        return True
