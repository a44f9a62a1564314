"""LAMB in one native call a step.

Not here: the rule (csrc/kernels/optimizer/lamb.cpp), the call (native.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ortmodule.optim.adam import moment_settings
from ortmodule.optim.native import Group, number
from ortmodule.optim.states import MomentStates


class LAMB(MomentStates):
    """LAMB: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 2020, algorithm 2.

    With d = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + `eps`) + `weight_decay` w, where m and v are Adam's
    moments, a parameter moves by -`lr` ratio d; ratio is |w| / |d| of the whole parameter, held within `ratio`, and 1
    where one of the norms is 0.

    Args:
        params: parameters, or groups of them as dicts; real, dense gradients.
        lr: learning rate, a number or a tensor of one element.
        betas: decays of the two moments, in [0, 1).
        eps: added to the root, at least 0.
        weight_decay: at least 0.
        ratio: the least and the largest ratio.
        correct_bias: False uses the moments as they are.
        maximize: goes up instead of down.
        state_bits: 32, or 8 as Adam's.

    Raises:
        ValueError: a number outside these ranges.
        RuntimeError: complex parameters or sparse gradients, at the step.
    """

    _rule = "lamb"

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        ratio: tuple[float, float] = (0.0, math.inf),
        correct_bias: bool = True,
        maximize: bool = False,
        state_bits: int = 32,
    ) -> None:
        if not number(lr) >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Invalid betas: {betas}; each should be in [0, 1)")
        if not eps >= 0.0 or not weight_decay >= 0.0:
            raise ValueError(f"eps and weight_decay should be at least 0, got {eps} and {weight_decay}")
        if not 0.0 <= ratio[0] <= ratio[1]:
            raise ValueError(f"ratio should be two ascending numbers from 0 on, got {ratio}")
        self._initial_bits = state_bits
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "ratio": ratio,
            "correct_bias": correct_bias,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _settings(self, group: Group) -> dict[str, float]:
        low, high = group["ratio"]
        own = {"correct_bias": float(group["correct_bias"]), "ratio_min": float(low), "ratio_max": float(high)}
        return {**moment_settings(group), **own}

    def _is_native(self, group: Group) -> bool:
        if any(p.is_complex() for p in group["params"] if p.grad is not None):
            raise RuntimeError("LAMB does not support complex parameters")
        return super()._is_native(group)

    def _torch_step(self, groups: list[Group]) -> None:
        if any(group.get("state_bits") == 8 for group in groups):
            raise RuntimeError("states in 8 bits are for dense parameters on the CPU")
        for group in groups:
            kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    kinds.setdefault((p.device, p.dtype), []).append(p)
            for parameters in kinds.values():
                rows = [self._row(group, p, p.grad, None) for p in parameters if p.grad is not None]
                foreach_lamb(group, *(list(column) for column in zip(*rows, strict=True)))


@torch.no_grad()
def foreach_lamb(group: Group, ps: list, gs: list, steps: list, _: list, ms: list, vs: list, *rest: list) -> None:
    """The same in torch's _foreach operations, for devices without a kernel of ours; what benchmarks compare with."""
    beta1, beta2 = (number(beta) for beta in group["betas"])
    if group["maximize"]:
        gs = list(torch._foreach_neg(gs))
    for step in steps:
        step += 1
    torch._foreach_lerp_(ms, gs, 1 - beta1)
    torch._foreach_mul_(vs, beta2)
    torch._foreach_addcmul_(vs, gs, gs, value=1 - beta2)
    corrects = group["correct_bias"]
    directions = torch._foreach_div(ms, [1 - beta1 ** float(s) if corrects else 1.0 for s in steps])
    roots = torch._foreach_div(vs, [1 - beta2 ** float(s) if corrects else 1.0 for s in steps])
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_div_(directions, roots)
    torch._foreach_add_(directions, ps, alpha=group["weight_decay"])
    sizes, lengths = torch._foreach_norm(ps), torch._foreach_norm(directions)
    low, high = group["ratio"]
    ratios = [torch.where((a > 0) & (b > 0), (a / b).clamp(low, high), 1.0) for a, b in zip(sizes, lengths)]
    torch._foreach_mul_(directions, ratios)
    torch._foreach_add_(ps, directions, alpha=-number(group["lr"]))
