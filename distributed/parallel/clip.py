"""Clipping of gradients where each rank has a part of the parameters, without `zero` (which clips itself).

Not here: gradients that are divided, too (ZeroOptimizer.clip_grad_norm_).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ortmodule.distributed.collectives import Ranks, combine_parts, model_parts

__all__ = ["clip_grad_norm_"]


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """torch.nn.utils.clip_grad_norm_ over all parts of a parallelized model, or of a pipeline's, on all ranks; the norm
    before, a 0-d tensor in float32. What several ranks have whole counts once.
    """
    parts = model_parts(model)
    given = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    counted = [grad for name, grad in given if parts is None or parts.counts(name)]
    device = given[0][1].device if given else torch.device("cpu")
    each = torch._foreach_norm(counted, norm_type, dtype=torch.float64) if counted else [torch.zeros(())]
    norm = torch.linalg.vector_norm(torch.stack([n.to(device, torch.float64) for n in each]), norm_type)
    ranks = Ranks(dist.group.WORLD, parts=parts)  # type: ignore[arg-type]
    if norm_type == float("inf"):
        combine_parts(norm, ranks, dist.ReduceOp.MAX)
    else:
        norm = norm**norm_type
        combine_parts(norm, ranks)
        norm = norm ** (1 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for _, grad in given:
        grad.mul_(scale.to(grad.dtype))
    return norm.float()
