"""Checkpoints of sharded training, over torch.distributed.checkpoint and safetensors."""

from ortmodule.distributed.checkpoint.checkpoint import Loaded, latest_checkpoint, load_checkpoint, save_checkpoint
from ortmodule.distributed.checkpoint.consolidate import consolidate
from ortmodule.distributed.checkpoint.storage import verify

__all__ = ["Loaded", "consolidate", "latest_checkpoint", "load_checkpoint", "save_checkpoint", "verify"]
