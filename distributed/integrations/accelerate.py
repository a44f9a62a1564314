"""`zero` within Accelerate's loop, and Hugging Face's Trainer, whose loop stands on Accelerate.

They would put the model into DistributedDataParallel, clip what lies in the parameters' `.grad`, and clear that alone.
Not here: checkpoints, which are `save_checkpoint`'s: these libraries write what one rank has.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from ortmodule import ORTModule
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.errors import InvalidArgumentError

__all__ = ["for_accelerate"]


def for_accelerate(accelerator: Any, model: nn.Module, optimizer: ZeroOptimizer) -> None:
    """Has an Accelerator train with what `zero` returned; to be called before `prepare`, or before `Trainer.train()`.

    Args:
        accelerator: an `accelerate.Accelerator`, or a Trainer's (`trainer.accelerator`).
        model, optimizer: what `zero` returned; hand both to `prepare` (the optimizer to `Trainer(optimizers=)`).

    From then on `prepare` leaves the model as it is (with its own types: no autocast is put around it, so that a 16-bit
    model is one with `ZeroPolicy(master_dtype=torch.float32)`); `accelerator.clip_grad_norm_` clips by the norm over
    all ranks, whatever parameters it is given; `model.zero_grad()` clears the shards as well.

    Raises:
        InvalidArgumentError: the optimizer is not one that `zero` returned, or the accelerator shards the model itself.
    """
    if not isinstance(optimizer, ZeroOptimizer):
        raise InvalidArgumentError(f"expected the optimizer that zero() returned, got {type(optimizer).__name__}")
    kind = str(getattr(accelerator, "distributed_type", "")).rpartition(".")[2]
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise InvalidArgumentError(f"the accelerator shards the model itself ({kind}): make it without that plugin")
    model._is_accelerate_prepared = True  # type: ignore[assignment]  # what its prepare() asks

    def clip(self: Any, parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        del parameters
        self.unscale_gradients()
        return optimizer.clip_grad_norm_(max_norm, norm_type)

    inner = model.module if isinstance(model, ORTModule) else model
    clear = inner.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        clear(set_to_none)
        optimizer.zero_grad(set_to_none)

    accelerator.clip_grad_norm_ = types.MethodType(clip, accelerator)
    inner.zero_grad = zero_grad  # type: ignore[method-assign]
