"""Distributed training over torch.distributed (installed as `ortmodule.distributed`)."""

from ortmodule.distributed.checkpoint import (
    Loaded,
    consolidate,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    verify,
)
from ortmodule.distributed.environment import LaunchEnvironment, is_rank_zero, launch_environment
from ortmodule.distributed.errors import CheckpointError, DistributedError, LostRankError, RankDisagreementError
from ortmodule.distributed.memory import Memory, memory_estimate
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.distributed.policy import Stage, ZeroPolicy
from ortmodule.distributed.stage3 import gathered
from ortmodule.distributed.zero import zero

__all__ = [
    "CheckpointError",
    "DistributedError",
    "LaunchEnvironment",
    "Loaded",
    "LostRankError",
    "Memory",
    "RankDisagreementError",
    "Stage",
    "ZeroOptimizer",
    "ZeroPolicy",
    "consolidate",
    "gathered",
    "is_rank_zero",
    "latest_checkpoint",
    "launch_environment",
    "load_checkpoint",
    "memory_estimate",
    "save_checkpoint",
    "verify",
    "zero",
]
