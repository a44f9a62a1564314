"""Stage 3 of a plain module: torch's `fully_shard`, set up as `zero` does it. No second engine of ours.

Not here: stage 3 of an ORTModule (stage3.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ortmodule.distributed.policy import ZeroPolicy
from ortmodule.errors import InvalidArgumentError

__all__ = ["fully_sharded"]


def fully_sharded(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: ZeroPolicy,
    initialize: Callable[[nn.Module], None] | None,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Each child of a ModuleList and the model itself become units of `fully_shard`; the optimizer gets the DTensors.

    With `master_dtype` the parameters become of that type, and are computed with in the one they had.
    """
    if optimizer.state:
        raise InvalidArgumentError("the optimizer has a state already: shard a plain module before the first step")
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    mixed = MixedPrecisionPolicy()
    if policy.master_dtype is not None and len(dtypes) == 1 and dtypes != {policy.master_dtype}:
        mixed = MixedPrecisionPolicy(param_dtype=dtypes.pop(), reduce_dtype=policy.reduce_dtype or policy.master_dtype)
        for p in model.parameters():
            p.data = p.data.to(policy.master_dtype)
    options: dict[str, Any] = {
        "mesh": policy.mesh,
        "reshard_after_forward": policy.regather,
        "mp_policy": mixed,
        "offload_policy": CPUOffloadPolicy() if policy.offload == "cpu" else OffloadPolicy(),
    }
    old = {p: name for name, p in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for child in module:
                fully_shard(child, **options)
    fully_shard(model, **options)
    new = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [new[old[p]] for p in group["params"]]
    if any(p.is_meta for p in model.parameters()):
        model.to_empty(device=torch.get_default_device())
        for module in model.modules():
            own = initialize or getattr(type(module), "reset_parameters", None)
            if own is not None and any(True for _ in module.parameters(recurse=False)):
                own(module)
    return model, optimizer
