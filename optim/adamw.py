"""AdamW that updates all parameters of a group in one fused kernel wherever torch has one.

Why: torch.optim.AdamW's default walks the parameters one operation at a time; on a CPU that costs as much as a tenth
to a third of a training step, and its fused kernel a tenth of that. It has to be asked for, and refuses groups it
cannot serve; here the choice is made per group.
Not here: the update rule and the kernels (torch's).
"""

from __future__ import annotations

from typing import Any

import torch

_FUSED_DEVICES = frozenset({"cpu", "cuda"})


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019), fused where possible.

    Same arguments, state and numbers as torch.optim.AdamW, whose checkpoints load here and the other way round. A group
    is fused when all its parameters are real floating-point tensors on the CPU or on CUDA devices, and none of
    `foreach`, `fused` and `differentiable` was given; an explicit choice is kept. Gradients must be dense then.

    Raises:
        ValueError, TypeError: as torch.optim.AdamW.
    """

    def __init__(self, params: Any, lr: float | torch.Tensor = 1e-3, **options: Any) -> None:
        asked = (options.get(name) for name in ("foreach", "fused", "differentiable"))
        self._chooses = all(value is None or value is False for value in asked) and options.get("fused") is None
        super().__init__(params, lr, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        explicit = "fused" in param_group or "foreach" in param_group
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self._chooses and not explicit:
            group["fused"] = _can_be_fused(group["params"]) or None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over state and hyperparameters; which kernel runs stays this optimizer's choice."""
        groups = state_dict["param_groups"]
        if len(groups) == len(self.param_groups):  # otherwise torch's own message says what is wrong
            own = [{"fused": g["fused"], "foreach": g["foreach"]} for g in self.param_groups]
            groups = [{**saved, **mine} for saved, mine in zip(groups, own, strict=True)]
        super().load_state_dict({**state_dict, "param_groups": groups})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_chooses", True)


def _can_be_fused(params: list[torch.Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in _FUSED_DEVICES for p in params)
