"""Learning-rate schedules.

What: the schedule of most language-model recipes, as an ordinary `torch.optim.lr_scheduler.LambdaLR`, so that it works
with any optimizer, has a state dict and can be chained.
Not here: schedules that torch.optim.lr_scheduler already has.
"""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def _factor(step: int, warmup: int, total: int, floor: float) -> float:
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_cosine(
    optimizer: Optimizer, *, warmup_steps: int, total_steps: int, floor: float = 0.0, last_epoch: int = -1
) -> LambdaLR:
    """Linear warm-up, then half a cosine down (Loshchilov and Hutter, SGDR, 2017, without restarts).

    With w = `warmup_steps` and T = `total_steps`, the factor on each group's initial learning rate at step s is
    (s + 1) / (w + 1) for s < w, and floor + (1 - floor) * (1 + cos(pi * (s - w) / (T - w))) / 2 after it. From step T
    on it stays at `floor`.

    Args:
        optimizer: the optimizer whose `lr` is scheduled.
        warmup_steps: optimizer steps of warm-up, 0 or more.
        total_steps: optimizer steps of the whole run, warm-up included; at least `warmup_steps` and at least 1.
        floor: the fraction of the initial learning rate kept at the end, in [0, 1].
        last_epoch: the last step done, as in torch's schedulers; -1 starts anew.

    Raises:
        ValueError: a number outside the ranges above.
    """
    if warmup_steps < 0 or total_steps < 1 or total_steps < warmup_steps:
        raise ValueError(
            f"expected 0 <= warmup_steps <= total_steps and total_steps >= 1, got {warmup_steps=}, {total_steps=}"
        )
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"floor is a fraction of the initial learning rate in [0, 1], got {floor}")
    factor = functools.partial(_factor, warmup=warmup_steps, total=total_steps, floor=floor)
    return LambdaLR(optimizer, factor, last_epoch)
