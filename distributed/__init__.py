"""Distributed training over torch.distributed (installed as `ortmodule.distributed`)."""

from ortmodule.distributed.environment import LaunchEnvironment, is_rank_zero, launch_environment

__all__ = ["LaunchEnvironment", "is_rank_zero", "launch_environment"]
