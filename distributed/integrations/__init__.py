"""Sharded training within other libraries' loops."""

from ortmodule.distributed.integrations.accelerate import for_accelerate

__all__ = ["for_accelerate"]
